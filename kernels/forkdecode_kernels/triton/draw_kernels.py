"""Filters and inverse CDF: where each row's kept tokens begin, their weights by chunk, one search a child.

A row's kept tokens are those above a key, and the first few in token order that equal it. The key is
found bit by bit, without a sort; every sum runs over chunks of one fixed shape.
"""

from __future__ import annotations

import triton
import triton.language as tl

from forkdecode_kernels.triton.ordered import ordered, unordered


@triton.jit
def _logits(row_ptr, n, vocab, CHUNK: tl.constexpr):
    """One chunk of a row in float32, -inf beyond the vocabulary."""
    token = n + tl.arange(0, CHUNK)
    return tl.load(row_ptr + token, mask=token < vocab, other=float("-inf")).to(tl.float32)


@triton.jit
def _weights(x, best, scale):
    """exp((x - best) * scale), 0 for -inf. The difference to the best first: no overflow."""
    z = tl.where(x == float("-inf"), float("-inf"), (x - best) * scale)
    return tl.where(x == best, 1.0, tl.exp(z))


@triton.jit
def _count_from(row_ptr, key, vocab, CHUNK: tl.constexpr):
    total = tl.zeros([], tl.int32)
    for n in range(0, vocab, CHUNK):
        x = _logits(row_ptr, n, vocab, CHUNK)
        inside = n + tl.arange(0, CHUNK) < vocab
        total += tl.sum(((ordered(x) >= key) & inside).to(tl.int32), 0)
    return total


@triton.jit
def _mass_from(row_ptr, key, best, scale, vocab, CHUNK: tl.constexpr):
    total = tl.zeros([], tl.float64)
    for n in range(0, vocab, CHUNK):
        x = _logits(row_ptr, n, vocab, CHUNK)
        weight = tl.where(ordered(x) >= key, _weights(x, best, scale), 0.0)
        total += tl.sum(weight.to(tl.float64), 0)
    return total


@triton.jit
def _kth_key(row_ptr, k, best_key, vocab, CHUNK: tl.constexpr):
    """The key of the k-th largest logit."""
    key = tl.full([], -2147483648, tl.int32)
    key = tl.where(_count_from(row_ptr, 0, vocab, CHUNK) >= k, 0, key)
    for b in range(1, 32):
        trial = key | (1 << (31 - b))
        if trial <= best_key:  # else nothing is that large, and the pass is saved
            key = tl.where(_count_from(row_ptr, trial, vocab, CHUNK) >= k, trial, key)
    return key


@triton.jit
def _nucleus(row_ptr, top_p, floor, best, scale, vocab, CHUNK: tl.constexpr):
    """Of the tokens from key `floor` up: the highest key with share top_p at or above it, and how many
    tokens that equal it belong (those before which less than the share lies)."""
    target = top_p * _mass_from(row_ptr, floor, best, scale, vocab, CHUNK)
    best_key = ordered(best)
    key = tl.full([], -2147483648, tl.int32)
    # At or below the floor everything that counts is included.
    mass = _mass_from(row_ptr, tl.maximum(floor, 0), best, scale, vocab, CHUNK)
    key = tl.where((best_key >= 0) & ((floor >= 0) | (mass >= target)), 0, key)
    for b in range(1, 32):
        trial = key | (1 << (31 - b))
        if trial <= floor:
            key = trial
        elif trial <= best_key:
            key = tl.where(_mass_from(row_ptr, trial, best, scale, vocab, CHUNK) >= target, trial, key)
    above = _mass_from(row_ptr, key + 1, best, scale, vocab, CHUNK)
    each = _weights(unordered(key), best, scale).to(tl.float64)
    share = tl.ceil((target - above) / tl.where(each > 0, each, 1.0))
    return key, tl.minimum(tl.maximum(share, 1.0), 2147483647.0).to(tl.int32)


@triton.jit
def filter_rows_kernel(
    logits_ptr,
    rows_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    best_ptr,
    scale_ptr,
    key_ptr,
    ties_ptr,
    log_norm_ptr,
    logsumexp_ptr,
    status_ptr,
    mass_ptr,
    ties_before_ptr,
    vocab,
    stride_row,
    num_chunks,
    CHUNK: tl.constexpr,
):
    """Grid (rows): what decides whether a token is kept, and running sums of kept weight by chunk."""
    i = tl.program_id(0)
    row_ptr = logits_ptr + tl.load(rows_ptr + i).to(tl.int64) * stride_row
    best = tl.full([], float("-inf"), tl.float32)
    bad = tl.zeros([], tl.int32)
    for n in range(0, vocab, CHUNK):
        x = _logits(row_ptr, n, vocab, CHUNK)
        bad += tl.max(((x != x) | (x == float("inf"))).to(tl.int32), 0)
        best = tl.maximum(best, tl.max(tl.where(x == x, x, float("-inf")), 0))
    best = tl.where(bad > 0, 0.0, best)
    status = tl.where(bad > 0, 1, tl.where(best == float("-inf"), 2, 0))
    tl.store(status_ptr + i, status)
    if status == 0:
        lowest = tl.full([], -2147483648, tl.int32)
        raw = _mass_from(row_ptr, lowest, best, 1.0, vocab, CHUNK)
        tl.store(logsumexp_ptr + i, best.to(tl.float64) + tl.log(raw))
        temperature = tl.load(temperature_ptr + i)
        scale = tl.minimum(1.0 / tl.maximum(temperature, 1e-30), 1e30).to(tl.float32)
        top_k = tl.load(top_k_ptr + i)
        top_p = tl.load(top_p_ptr + i)
        floor = tl.load(min_p_ptr + i).to(tl.float32)
        best_key = ordered(best)
        key = lowest
        ties = tl.full([], 2147483647, tl.int32)
        if temperature == 0.0:
            scale = tl.full([], 1.0, tl.float32)
            key = best_key
            ties = tl.full([], 1, tl.int32)
            floor = tl.full([], 0.0, tl.float32)
        else:
            if (top_k > 0) & (top_k < vocab):
                key = _kth_key(row_ptr, top_k, best_key, vocab, CHUNK)
            if top_p < 1.0:
                key, ties = _nucleus(row_ptr, top_p, key, best, scale, vocab, CHUNK)
        mass = tl.zeros([], tl.float64)
        equal = tl.zeros([], tl.int32)
        for n in range(0, vocab, CHUNK):
            tl.store(ties_before_ptr + i * num_chunks + n // CHUNK, equal)
            x = _logits(row_ptr, n, vocab, CHUNK)
            kept, number, _ = _kept(x, best, scale, key, ties, equal, floor)
            mass += tl.sum(kept.to(tl.float64), 0)
            equal += number
            tl.store(mass_ptr + i * num_chunks + n // CHUNK, mass)
        tl.store(best_ptr + i, best)
        tl.store(scale_ptr + i, scale)
        tl.store(key_ptr + i, key)
        tl.store(ties_ptr + i, ties)
        tl.store(log_norm_ptr + i, tl.log(tl.where(temperature == 0.0, raw, mass)))


@triton.jit
def _kept(x, best, scale, key, ties, ties_before, floor):
    """The weights of a chunk's kept tokens, 0 of the others; how many equal the edge; and which are kept, for
    a weight may be too small for a float32."""
    mine = ordered(x)
    edge = (mine == key).to(tl.int32)
    rank = ties_before + tl.cumsum(edge, 0) - edge
    weight = _weights(x, best, scale)
    keep = ((mine > key) | ((edge > 0) & (rank < ties))) & (weight >= floor)
    return tl.where(keep, weight, 0.0), tl.sum(edge, 0), keep


@triton.jit
def draw_kernel(
    logits_ptr,
    rows_ptr,
    source_ptr,
    uniform_ptr,
    min_p_ptr,
    temperature_ptr,
    best_ptr,
    scale_ptr,
    key_ptr,
    ties_ptr,
    log_norm_ptr,
    status_ptr,
    mass_ptr,
    ties_before_ptr,
    token_ptr,
    logprob_ptr,
    vocab,
    stride_row,
    num_chunks,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """Grid (children): the first kept token whose cumulative weight exceeds u times the whole."""
    child = tl.program_id(0)
    i = tl.load(source_ptr + child)
    if tl.load(status_ptr + i) == 0:
        best = tl.load(best_ptr + i)
        scale = tl.load(scale_ptr + i)
        lane = tl.arange(0, CHUNKS)
        mass = tl.load(mass_ptr + i * num_chunks + lane, mask=lane < num_chunks, other=float("inf"))
        total = tl.load(mass_ptr + i * num_chunks + num_chunks - 1)
        target = tl.load(uniform_ptr + child) * total
        # Rounding may leave the target a hair at or beyond the last sum: then the last likely chunk.
        last = tl.sum((mass < total).to(tl.int32), 0)
        chunk = tl.minimum(tl.sum((mass <= target).to(tl.int32), 0), last)
        before = tl.sum(tl.where(lane == chunk - 1, mass, 0.0), 0)
        row_ptr = logits_ptr + tl.load(rows_ptr + i).to(tl.int64) * stride_row
        x = _logits(row_ptr, chunk * CHUNK, vocab, CHUNK)
        floor = tl.load(min_p_ptr + i).to(tl.float32)
        floor = tl.where(tl.load(temperature_ptr + i) == 0.0, 0.0, floor)
        equal = tl.load(ties_before_ptr + i * num_chunks + chunk)
        kept, _, _ = _kept(x, best, scale, tl.load(key_ptr + i), tl.load(ties_ptr + i), equal, floor)
        running = before + tl.cumsum(kept.to(tl.float64), 0)
        at = tl.arange(0, CHUNK)
        first = tl.min(tl.where((kept > 0) & (running > target), at, CHUNK), 0)
        final = tl.max(tl.where(kept > 0, at, 0), 0)
        token = tl.where(first < CHUNK, first, final)
        chosen = tl.max(tl.where(at == token, x, float("-inf")), 0)
        logprob = ((chosen - best) * scale).to(tl.float64) - tl.load(log_norm_ptr + i)
        tl.store(token_ptr + child, (chunk * CHUNK + token).to(tl.int64))
        tl.store(logprob_ptr + child, logprob.to(tl.float32))


@triton.jit
def distribution_kernel(
    logits_ptr,
    rows_ptr,
    min_p_ptr,
    temperature_ptr,
    best_ptr,
    scale_ptr,
    key_ptr,
    ties_ptr,
    log_norm_ptr,
    status_ptr,
    ties_before_ptr,
    out_ptr,
    vocab,
    stride_row,
    num_chunks,
    CHUNK: tl.constexpr,
):
    """Grid (rows, chunks): log-probabilities of what is drawn from; at temperature 0 of every token."""
    i = tl.program_id(0)
    chunk = tl.program_id(1)
    if tl.load(status_ptr + i) == 0:
        best = tl.load(best_ptr + i)
        scale = tl.load(scale_ptr + i)
        greedy = tl.load(temperature_ptr + i) == 0.0
        row_ptr = logits_ptr + tl.load(rows_ptr + i).to(tl.int64) * stride_row
        x = _logits(row_ptr, chunk * CHUNK, vocab, CHUNK)
        floor = tl.load(min_p_ptr + i).to(tl.float32)
        equal = tl.load(ties_before_ptr + i * num_chunks + chunk)
        _, _, keep = _kept(x, best, scale, tl.load(key_ptr + i), tl.load(ties_ptr + i), equal, floor)
        logprob = ((x - best) * scale).to(tl.float64) - tl.load(log_norm_ptr + i)
        result = tl.where(keep, logprob.to(tl.float32), float("-inf"))
        result = tl.where(greedy, logprob.to(tl.float32), result)
        token = chunk * CHUNK + tl.arange(0, CHUNK)
        tl.store(out_ptr + i.to(tl.int64) * vocab + token, result, mask=token < vocab)
