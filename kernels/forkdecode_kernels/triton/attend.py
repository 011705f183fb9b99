"""The inner loop of every attention kernel: some queries over a range of paged keys and values."""

from __future__ import annotations

import triton
import triton.language as tl

from forkdecode_kernels.triton.numerics import narrowed, tanh


@triton.jit
def heads_of(program, lane, GROUP: tl.constexpr, SHARE: tl.constexpr):
    """-> the kv head, which of the query heads lane 0 .. SHARE - 1 are, and whether they are.

    The GROUP query heads of a kv head are cut into shares of SHARE, a program each: program is
    kv head * shares + share. Where there are several, the last one may be short.
    """
    SHARES: tl.constexpr = (GROUP + SHARE - 1) // SHARE
    if SHARES == 1:
        return program, program * GROUP + lane, lane < GROUP
    own = program % SHARES * SHARE + lane
    return program // SHARES, program // SHARES * GROUP + own, (lane < SHARE) & (own < GROUP)


@triton.jit
def attend(
    q,
    query_position,
    key_ptr,
    value_ptr,
    blocks_ptr,
    begin,
    end,
    first_position,
    scale,
    softcap,
    window,
    stride_block,
    stride_slot,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    EMULATE: tl.constexpr,
):
    """q [BLOCK_M, PADDED_DIM] over tokens begin .. end of a block list -> (max, sum, weighted values).

    Online softmax in base 2 (Milakov and Gimelshein 2018, arXiv 1805.02867; FlashAttention,
    arXiv 2205.14135, algorithm 1). Token n of the list stands at first_position + n and is seen by
    queries at query_position >= that (CAUSAL) and < that + window (WINDOW). begin is a multiple of
    BLOCK_N. key_ptr and value_ptr point to the kv head. A query that sees nothing gets max -inf, sum 0.
    """
    LOG2_E: tl.constexpr = 1.4426950408889634
    lane_d = tl.arange(0, PADDED_DIM)
    in_dim = lane_d < HEAD_DIM
    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, PADDED_DIM], tl.float32)
    for n in range(begin, end, BLOCK_N):
        token = n + tl.arange(0, BLOCK_N)
        inside = token < end
        block = tl.load(blocks_ptr + token // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        base = block * stride_block + (token % BLOCK_SIZE) * stride_slot
        k_at = key_ptr + base[None, :] + lane_d[:, None]
        v_at = value_ptr + base[:, None] + lane_d[None, :]
        if HEAD_DIM == PADDED_DIM:
            k = tl.load(k_at, mask=inside[None, :], other=0.0)
            v = tl.load(v_at, mask=inside[:, None], other=0.0)
        else:
            k = tl.load(k_at, mask=inside[None, :] & in_dim[:, None], other=0.0)
            v = tl.load(v_at, mask=inside[:, None] & in_dim[None, :], other=0.0)
        kv_type = v.dtype
        if EMULATE:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        # "ieee": float32 operands stay float32 (the default would be tf32); no effect on 16-bit ones.
        score = tl.dot(q, k, input_precision="ieee")
        if SOFTCAP:
            score = tanh(score * (scale / softcap)) * (softcap * LOG2_E)
        else:
            score = score * (scale * LOG2_E)
        seen = inside[None, :]
        if CAUSAL:
            seen = seen & (first_position + token[None, :] <= query_position[:, None])
        if WINDOW:
            seen = seen & (first_position + token[None, :] > query_position[:, None] - window)
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        # A query that has seen nothing yet: -inf minus -inf would be NaN.
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(score - shift[:, None])
        decay = tl.exp2(best - shift)
        total = total * decay + tl.sum(weight, 1)
        acc = acc * decay[:, None]
        acc = tl.dot(narrowed(weight, kv_type, EMULATE), v, acc, input_precision="ieee")
        best = higher
    return best, total, acc


@triton.jit
def with_sink(best, total, acc, sink):
    """Adds a logit without a value to the softmax (attention sinks of gpt-oss). sink [BLOCK_M], base 2."""
    higher = tl.maximum(best, sink)
    decay = tl.exp2(best - higher)
    return higher, total * decay + tl.exp2(sink - higher), acc * decay[:, None]


@triton.jit
def normalized(best, total, acc):
    """-> acc / total and the base-2 log-sum-exp; zeros and -inf where nothing was seen."""
    some = total > 0.0
    safe = tl.where(some, total, 1.0)
    return acc / safe[:, None], tl.where(some, best + tl.log2(safe), float("-inf"))
