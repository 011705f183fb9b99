"""The compiled attention of decode rows: blocks are read where they lie, with a running softmax over pieces.

What a group's rows share is a matrix product (cpu/pieces.py). What a row has alone is read once for the
query heads of a kv head: scores [heads, tokens], vectors of tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.attention_work import I32
from forkdecode_kernels.cpu.half import Stored, widen
from forkdecode_kernels.cpu.heads import hand_over
from forkdecode_kernels.cpu.pieces import F32, PIECE, Scratch, cap, together, tokens_at
from forkdecode_kernels.cpu.selection.jit import inlined, kernel
from forkdecode_kernels.cpu.tile import product
from forkdecode_kernels.cpu.vectors import LANES, dots_1, dots_4, dots_16, rescale, weigh_row

FEW = 8
"""Up to so many query rows a trunk is read for each row alone: a product would compute LANES of them."""


@kernel
def _dots(line: int, key: int, dim: int, left: int, count: int, out: int) -> None:
    """out[i] = line . key[i], i < count; `left` >= count tokens may be read, and as many written in whole
    vectors."""
    i = 0
    while i < count:
        if left - i >= LANES:
            dots_16(line, key + 4 * i * dim, dim, dim // LANES, out + 4 * i)
            i += LANES
        elif left - i >= 4:
            dots_4(line, key + 4 * i * dim, dim, dim // LANES, out + 4 * i)
            i += 4
        else:
            dots_1(line, key + 4 * i * dim, dim, dim // LANES, out + 4 * i)
            i += 1


@kernel
def _alone(
    keys: Stored, values: Stored, table: I32, start: int, stop: int, first: int, softcap: np.float32,
    scratch: Scratch,
) -> None:  # fmt: skip
    """Tokens start .. stop of a table, start in its first block, for one row's heads from `first` on."""
    size, dim, across = keys.shape[1], scratch.out.shape[1], scratch.state.shape[1]
    heads, width = scratch.alone.shape
    lines, out = scratch.lines[first:].ctypes.data, scratch.out[first:].ctypes.data
    scores, state = scratch.alone.ctypes.data, scratch.state[0, first:].ctypes.data
    at = start // LANES * LANES
    while at < stop:
        end = min(at + PIECE, stop)
        lanes = -(-(end - at) // LANES) * LANES
        t = at
        while t < end:
            key, left = tokens_at(keys, table, t, (t // size + 1) * size, scratch.copied)
            n = min(left, end - t)
            for g in range(heads):
                place = scores + 4 * (g * width + t - at)
                _dots(lines + 4 * g * dim, key, dim, left, n, place)
            t += n
        if softcap > np.float32(0.0):
            cap(scratch.alone, lanes, softcap)
        for g in range(heads):
            for i in range(end - at, lanes):
                scratch.alone[g, i] = -np.inf
            for i in range(start - at):
                scratch.alone[g, i] = -np.inf
            weigh_row(scores + 4 * g * width, lanes // LANES, state + 4 * g, across)
        rescale(out, dim // LANES, state + 8 * across, heads)
        t = max(at, start)
        while t < end:
            value, n = tokens_at(values, table, t, min((t // size + 1) * size, end), scratch.copied)
            product(scores + 4 * (t - at), width, 1, value, dim, out, dim, heads, dim, n, 1)
            t += n
        at = end


@inlined
def attend(
    query: Stored, kv: Stored, result: Stored, groups: NDArray[np.int64], blocks: I32, scale: np.float32,
    softcap: np.float32, sinks: F32, scratch: Scratch, item: int,
) -> None:  # fmt: skip
    """query [H, T, D], kv [2, K, B, S, D] -> result [T, H, D] for one item: one kv head of one of RowsPlan's
    groups. softcap 0 is none; sinks [H] or empty.
    """
    kv_heads, size, dim = kv.shape[1], kv.shape[3], kv.shape[4]
    heads = query.shape[0] // kv_heads
    lines, across, state = scratch.lines, scratch.across, scratch.state
    token, rows, trunk_blocks, trunk_at, tails_at, columns, hidden, context = groups[item // kv_heads]
    head = item % kv_heads
    keys, values = kv[0, head], kv[1, head]
    count = rows * heads
    scratch.out[:count] = np.float32(0.0)
    for m in range(count):
        h, t = head * heads + m % heads, token + m // heads
        for d in range(dim):
            lines[m, d] = widen(query[h, t, d]) * scale
        state[0, m] = sinks[h] if sinks.shape[0] > 0 else -np.inf
        state[1, m] = np.float32(1.0) if sinks.shape[0] > 0 else np.float32(0.0)
    shared = trunk_blocks * size
    trunk, seen = blocks[trunk_at : trunk_at + trunk_blocks], min(hidden, shared)
    as_one = count > FEW and seen < shared
    if as_one:
        for d in range(dim):
            for m in range(across.shape[1]):
                across[d, m] = lines[m, d] if m < count else np.float32(0.0)
        together(keys, values, trunk, seen, shared, context, 0, count, softcap, scratch)
    for r in range(rows):
        if not as_one:
            _alone(keys, values, trunk, seen, shared, r * heads, softcap, scratch)
        tail = blocks[tails_at + r * columns : tails_at + (r + 1) * columns]
        _alone(keys, values, tail, max(hidden - shared, 0), context - shared, r * heads, softcap, scratch)
    hand_over(scratch, count, token, head, result)
