"""The four kernels of beam_topk: tile sums, row sums, the bound, the candidates that reach it."""

from __future__ import annotations

import triton
import triton.language as tl

from forkdecode_kernels.triton.ordered import ordered


@triton.jit
def tile_sums_kernel(
    logits_ptr, rows_ptr, max_ptr, sum_ptr, vocab, stride_row, num_tiles, TILE: tl.constexpr
):
    """Grid (rows, tiles): max, and sum of exp(x - max), NaN where the tile has NaN or +inf."""
    i = tl.program_id(0)
    tile = tl.program_id(1)
    row = tl.load(rows_ptr + i).to(tl.int64)
    token = tile * TILE + tl.arange(0, TILE)
    x = tl.load(logits_ptr + row * stride_row + token, mask=token < vocab, other=float("-inf"))
    x = x.to(tl.float32)
    bad = tl.max(((x != x) | (x == float("inf"))).to(tl.int32), 0)
    best = tl.max(tl.where(x == x, x, float("-inf")), 0)
    total = tl.sum(tl.exp(x - tl.where(best == float("-inf"), 0.0, best)), 0)
    tl.store(max_ptr + i * num_tiles + tile, best)
    tl.store(sum_ptr + i * num_tiles + tile, tl.where(bad > 0, float("nan"), total))


@triton.jit
def row_sums_kernel(
    max_ptr,
    sum_ptr,
    base_ptr,
    score_ptr,
    shift_ptr,
    valid_ptr,
    num_tiles,
    NORMALIZED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (rows): what log-softmax subtracts, and each tile's best score."""
    i = tl.program_id(0)
    tile = tl.arange(0, BLOCK)
    mask = tile < num_tiles
    best = tl.load(max_ptr + i * num_tiles + tile, mask=mask, other=float("-inf"))
    total = tl.load(sum_ptr + i * num_tiles + tile, mask=mask, other=0.0)
    bad = tl.max((total != total).to(tl.int32), 0)
    top = tl.max(best, 0)
    top = tl.where(top == float("-inf"), 0.0, top).to(tl.float64)
    mass = tl.sum(total.to(tl.float64) * tl.exp(best.to(tl.float64) - top), 0)
    shift = top + tl.log(tl.where(mass > 0, mass, 1.0))
    if NORMALIZED:
        shift = top * 0.0
    logprob = (best.to(tl.float64) - shift).to(tl.float32)
    score = tl.load(base_ptr + i) + logprob
    score = tl.where(bad > 0, float("-inf"), score)
    tl.store(score_ptr + i * num_tiles + tile, score, mask=mask)
    tl.store(shift_ptr + i, shift)
    tl.store(valid_ptr + i, (bad == 0).to(tl.int32))


@triton.jit
def bound_kernel(score_ptr, groups_ptr, bound_ptr, num_tiles, BITS: tl.constexpr, CHUNK: tl.constexpr):
    """Grid (groups): a score that at least k tiles reach, as an ordered key. groups [G, 3]: first row,
    rows, k."""
    g = tl.program_id(0)
    begin = tl.load(groups_ptr + 3 * g) * num_tiles
    size = tl.load(groups_ptr + 3 * g + 1) * num_tiles
    k = tl.load(groups_ptr + 3 * g + 2)
    low = tl.full([], -2147483648, tl.int32)
    for b in range(BITS):
        # From unsigned bits to signed keys: the first bit is the sign, turned round.
        trial = low ^ (tl.full([], 1, tl.int32) << (31 - b))
        reached = tl.zeros([], tl.int32)
        for n in range(0, size, CHUNK):
            lane = n + tl.arange(0, CHUNK)
            score = tl.load(score_ptr + begin + lane, mask=lane < size, other=float("-inf"))
            reached += tl.sum(((ordered(score) >= trial) & (lane < size)).to(tl.int32), 0)
        low = tl.where(reached >= k, trial, low)
    tl.store(bound_ptr + g, low)


@triton.jit
def collect_kernel(
    logits_ptr,
    rows_ptr,
    owner_ptr,
    groups_ptr,
    base_ptr,
    score_ptr,
    shift_ptr,
    bound_ptr,
    count_ptr,
    list_ptr,
    vocab,
    stride_row,
    num_tiles,
    capacity,
    TILE: tl.constexpr,
):
    """Grid (rows, tiles): appends what reaches the bound to its group's list, in any order."""
    i = tl.program_id(0)
    tile = tl.program_id(1)
    g = tl.load(owner_ptr + i)
    bound = tl.load(bound_ptr + g)
    best = tl.load(score_ptr + i * num_tiles + tile)
    if (ordered(best) >= bound) & (best > float("-inf")):
        row = tl.load(rows_ptr + i).to(tl.int64)
        token = tile * TILE + tl.arange(0, TILE)
        x = tl.load(logits_ptr + row * stride_row + token, mask=token < vocab, other=float("-inf"))
        logprob = (x.to(tl.float64) - tl.load(shift_ptr + i)).to(tl.float32)
        score = tl.load(base_ptr + i) + logprob
        key = ordered(score)
        hit = (key >= bound) & (score > float("-inf"))
        ones = hit.to(tl.int32)
        first = tl.atomic_add(count_ptr + g, tl.sum(ones, 0))
        at = first + tl.cumsum(ones, 0) - 1
        # Ascending: the better score first, then the lower row, then the lower token.
        local = (i - tl.load(groups_ptr + 3 * g)).to(tl.int64) * vocab + token
        packed = ((-1 - key.to(tl.int64)) << 32) | local
        tl.store(list_ptr + g.to(tl.int64) * capacity + at, packed, mask=hit & (at < capacity))
