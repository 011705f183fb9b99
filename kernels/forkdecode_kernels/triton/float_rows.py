"""Rows of logits as float32, as they are or log-softmaxed, and masks of them by bits and by lists."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from forkdecode_kernels.triton.beam_topk import SUMS_WARPS, TILE, tile_warps
from forkdecode_kernels.triton.beam_topk_kernels import tile_sums_kernel
from forkdecode_kernels.triton.tiles import FUSED, power_of_two

WORDS = 256
"""Words of 32 bits that a program masks by."""
ENTRIES = 1024
"""Entries of a list that a program takes at a time."""


@triton.jit
def logsumexp_kernel(max_ptr, sum_ptr, logsumexp_ptr, num_tiles, BLOCK: tl.constexpr):
    """Grid (rows): from what tile_sums_kernel left; NaN where a tile has NaN or +inf, -inf for nothing but
    that."""
    i = tl.program_id(0)
    tile = tl.arange(0, BLOCK)
    mask = tile < num_tiles
    best = tl.load(max_ptr + i * num_tiles + tile, mask=mask, other=float("-inf"))
    total = tl.load(sum_ptr + i * num_tiles + tile, mask=mask, other=0.0)
    bad = tl.max((total != total).to(tl.int32), 0)
    top = tl.max(best, 0)
    whole = tl.where(top == float("-inf"), 0.0, top).to(tl.float64)
    mass = tl.sum(
        tl.where(total == total, total, 0.0).to(tl.float64) * tl.exp(best.to(tl.float64) - whole), 0
    )
    found = tl.where(mass > 0, whole + tl.log(tl.where(mass > 0, mass, 1.0)), float("-inf"))
    tl.store(logsumexp_ptr + i, tl.where(bad > 0, float("nan"), found))


@triton.jit
def float_rows_kernel(
    logits_ptr,
    rows_ptr,
    logsumexp_ptr,
    out_ptr,
    vocab,
    stride_row,
    stride_out,
    LOG_SOFTMAX: tl.constexpr,
    TILE: tl.constexpr,
):
    """Grid (rows, tiles): float32(x), or float32(x - logsumexp) subtracted in float64."""
    i = tl.program_id(0)
    token = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = token < vocab
    row = tl.load(rows_ptr + i).to(tl.int64)
    x = tl.load(logits_ptr + row * stride_row + token, mask=inside, other=0.0).to(tl.float32)
    if LOG_SOFTMAX:
        shift = tl.load(logsumexp_ptr + i)
        x = (x.to(tl.float64) - tl.where(shift == float("-inf"), 0.0, shift)).to(tl.float32)
    tl.store(out_ptr + i.to(tl.int64) * stride_out + token, x, mask=inside)


@triton.jit
def keep_bits_kernel(values_ptr, rows_ptr, words_ptr, vocab, stride_row, num_words, WORDS: tl.constexpr):
    """Grid (masked rows, words / WORDS): writes -inf where a token's bit is not set, and reads no value."""
    i = tl.program_id(0)
    first = tl.program_id(1) * WORDS
    token = first * 32 + tl.arange(0, WORDS * 32)
    inside = token < vocab
    word = tl.load(words_ptr + i.to(tl.int64) * num_words + token // 32, mask=inside, other=0)
    banned = ((word >> (token % 32)) & 1) == 0
    row = tl.load(rows_ptr + i).to(tl.int64)
    nothing = tl.full([WORDS * 32], float("-inf"), tl.float32)
    tl.store(values_ptr + row * stride_row + token, nothing, mask=banned & inside)


@triton.jit
def set_bits_kernel(tokens_ptr, start_ptr, stop_ptr, words_ptr, num_words, ENTRIES: tl.constexpr):
    """Grid (rows): sets the bits of tokens[start[i] : stop[i]] in row i."""
    i = tl.program_id(0)
    stop = tl.load(stop_ptr + i)
    for n in range(tl.load(start_ptr + i), stop, ENTRIES):
        at = n + tl.arange(0, ENTRIES)
        listed = at < stop
        token = tl.load(tokens_ptr + at, mask=listed, other=0)
        word = words_ptr + i.to(tl.int64) * num_words + token // 32
        tl.atomic_or(word, (listed.to(tl.int32)) << (token % 32), mask=listed)


def row_logsumexp(logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """logits [M, V], last stride 1; rows [m] int64 there -> logsumexp [m] float64: NaN for a row with NaN or
    +inf, -inf for one of nothing but that. Of a shape that the vocabulary alone decides."""
    m, vocab = len(rows), logits.shape[1]
    tiles = triton.cdiv(vocab, TILE)
    best = torch.empty(m, tiles, dtype=torch.float32, device=logits.device)
    sums = torch.empty_like(best)
    found = torch.empty(m, dtype=torch.float64, device=logits.device)
    if m:
        warps = tile_warps(TILE, SUMS_WARPS)
        shape = (vocab, logits.stride(0), tiles)
        tile_sums_kernel[(m, tiles)](logits, rows, best, sums, *shape, TILE=TILE, num_warps=warps, **FUSED)
        logsumexp_kernel[(m,)](best, sums, found, tiles, BLOCK=power_of_two(tiles), **FUSED)
    return found


def float_rows(
    logits: torch.Tensor, rows: torch.Tensor, logsumexp: torch.Tensor, out: torch.Tensor, *, log_softmax: bool
) -> None:
    """out [m, V] float32, last stride 1: logits[rows], or with `log_softmax` minus their logsumexp [m]."""
    m, vocab = out.shape
    if m:
        float_rows_kernel[(m, triton.cdiv(vocab, TILE))](
            logits,
            rows,
            logsumexp,
            out,
            vocab,
            logits.stride(0),
            out.stride(0),
            LOG_SOFTMAX=log_softmax,
            TILE=TILE,
            num_warps=tile_warps(TILE, SUMS_WARPS),
            **FUSED,
        )


def keep_bits(values: torch.Tensor, rows: torch.Tensor, words: torch.Tensor) -> None:
    """Sets token t of values[rows[i]] to -inf unless bit t % 32 of words[i, t // 32] is set; in place.

    values [m, V] float32, last stride 1; rows [n] int64; words [n, ceil(V / 32)] int32.
    """
    count, num_words = words.shape
    if count:
        keep_bits_kernel[(count, triton.cdiv(num_words, WORDS))](
            values,
            rows,
            words,
            values.shape[1],
            values.stride(0),
            num_words,
            WORDS=WORDS,
            num_warps=8,
            **FUSED,
        )


def bits_of_lists(tokens: torch.Tensor, start: torch.Tensor, stop: torch.Tensor, vocab: int) -> torch.Tensor:
    """words [n, ceil(V / 32)] int32 with the bits of tokens[start[i] : stop[i]] set; all int32."""
    words = torch.zeros(len(start), triton.cdiv(vocab, 32), dtype=torch.int32, device=tokens.device)
    if len(start):
        set_bits_kernel[(len(start),)](tokens, start, stop, words, words.shape[1], ENTRIES=ENTRIES, **FUSED)
    return words
