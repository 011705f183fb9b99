"""The compiled attention of decode rows: blocks are read where they lie, with a running softmax over pieces.

What a group's rows share is a matrix product: scores [tokens, query rows], so that maxima and
exponentials run over vectors of query rows. What a row has alone is read once for the query heads of a
kv head: scores [heads, tokens], vectors of tokens. Running softmax: Milakov and Gimelshein, arXiv
1805.02867, section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from forkdecode_kernels.attention_work import I32
from forkdecode_kernels.cpu.half import Stored, narrow, widen
from forkdecode_kernels.cpu.selection.jit import entry, kernel
from forkdecode_kernels.cpu.tile import product
from forkdecode_kernels.cpu.vectors import (
    LANES,
    dots_1,
    dots_4,
    dots_16,
    rescale,
    weigh_columns,
    weigh_row,
)

F32 = NDArray[np.float32]
PIECE = 128
"""Tokens whose scores are kept at once: they stay in the first cache level."""
FEW = 8
"""Up to so many query rows a trunk is read for each row alone: a product would compute LANES of them."""


class Scratch(NamedTuple):
    """One thread's memory. M query rows and D dimensions, both up to multiples of LANES.

    lines [M, D]: queries times scale; across [D, M]: the same; out [M, D]; scores [PIECE, M];
    alone [G, PIECE + LANES]: one row's scores; block [S, D]: a block that can't be read where it lies;
    state [3, M]: as weigh_columns has it.
    """

    lines: F32
    across: F32
    out: F32
    scores: F32
    alone: F32
    block: F32
    state: F32


def make_scratch(query_rows: int, heads: int, size: int, dim: int) -> Scratch:
    """For up to `query_rows` query rows, G = `heads` of each row for a kv head, blocks [size, dim]."""
    columns, wide = padded(query_rows), padded(dim)
    shapes = {
        "lines": (columns, wide),
        "across": (wide, columns),
        "out": (columns, wide),
        "scores": (PIECE, columns),
        "alone": (heads, PIECE + LANES),
        "block": (size, wide),
        "state": (3, columns),
    }
    return Scratch(**{name: np.zeros(shape, np.float32) for name, shape in shapes.items()})


def padded(count: int) -> int:
    """Up to a multiple of LANES."""
    return -(-count // LANES) * LANES


def block_at(cache: Any, number: Any, buffer: Any) -> Any:
    """In kernels: where cache[number] is as float32 [S, whole vectors of D], or its copy in `buffer`."""
    raise NotImplementedError


def _block_at(cache: Any, number: Any, buffer: Any) -> Callable[[Any, Any, Any], Any]:
    return _copied if cache.dtype == types.uint16 else _in_place


def _in_place(cache: Any, number: Any, buffer: Any) -> Any:
    size, dim = cache.shape[1], cache.shape[2]
    if dim % LANES:
        return _copy(cache, number, buffer)
    return cache.ctypes.data + 4 * size * dim * number


def _copied(cache: Any, number: Any, buffer: Any) -> Any:
    return _copy(cache, number, buffer)


overload(block_at, strict=False)(_block_at)


@kernel
def _copy(cache: Stored, number: int, buffer: F32) -> int:
    for i in range(cache.shape[1]):
        for d in range(cache.shape[2]):
            buffer[i, d] = widen(cache[number, i, d])
    address: int = buffer.ctypes.data
    return address


@kernel
def _cap(scores: F32, columns: int, softcap: np.float32) -> None:
    for t in range(scores.shape[0]):
        for m in range(columns):
            scores[t, m] = softcap * np.tanh(scores[t, m] / softcap)


@kernel
def _together(
    keys: Stored, values: Stored, table: I32, start: int, stop: int, count: int, softcap: np.float32,
    scratch: Scratch,
) -> None:  # fmt: skip
    """Tokens start .. stop of a table, for the first `count` query rows at once."""
    size, dim, width = keys.shape[1], scratch.out.shape[1], scratch.scores.shape[1]
    across, scores = scratch.across.ctypes.data, scratch.scores.ctypes.data
    out, state = scratch.out.ctypes.data, scratch.state.ctypes.data
    wide = -(-count // LANES) * LANES
    while start < stop:
        end = min((start // PIECE + 1) * PIECE, stop)
        t = start
        while t < end:
            offset = t % size
            n = min(size - offset, end - t)
            key = block_at(keys, table[t // size], scratch.block) + 4 * offset * dim
            line = scores + 4 * (t - start) * width
            product(key, dim, 1, across, width, line, width, n, wide, dim, 0)
            t += n
        if softcap > np.float32(0.0):
            _cap(scratch.scores[: end - start], wide, softcap)
        for j in range(0, wide, LANES):
            weigh_columns(scores + 4 * j, width, end - start, state + 4 * j, width)
        rescale(out, dim // LANES, state + 8 * width, count)
        t = start
        while t < end:
            offset = t % size
            n = min(size - offset, end - t)
            value = block_at(values, table[t // size], scratch.block) + 4 * offset * dim
            product(scores + 4 * (t - start) * width, 1, width, value, dim, out, dim, count, dim, n, 1)
            t += n
        start = end


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
            offset = t % size
            n = min(size - offset, end - t)
            key = block_at(keys, table[t // size], scratch.block) + 4 * offset * dim
            for g in range(heads):
                place = scores + 4 * (g * width + t - at)
                _dots(lines + 4 * g * dim, key, dim, size - offset, n, place)
            t += n
        if softcap > np.float32(0.0):
            _cap(scratch.alone, lanes, softcap)
        for g in range(heads):
            for i in range(end - at, lanes):
                scratch.alone[g, i] = -np.inf
            for i in range(start - at):
                scratch.alone[g, i] = -np.inf
            weigh_row(scores + 4 * g * width, lanes // LANES, state + 4 * g, across)
        rescale(out, dim // LANES, state + 8 * across, heads)
        t = max(at, start)
        while t < end:
            offset = t % size
            n = min(size - offset, end - t)
            value = block_at(values, table[t // size], scratch.block) + 4 * offset * dim
            product(scores + 4 * (t - at), width, 1, value, dim, out, dim, heads, dim, n, 1)
            t += n
        at = end


@entry
def attend(
    query: Stored, kv: Stored, result: Stored, groups: NDArray[np.int64], blocks: I32, scale: np.float32,
    softcap: np.float32, sinks: F32, scratch: Scratch, begin: int, end: int,
) -> None:  # fmt: skip
    """query [H, T, D], kv [2, K, B, S, D] -> result [T, H, D] for the items begin .. end.

    An item is one kv head of one of RowsPlan's groups. softcap 0 is none; sinks [H] or empty.
    """
    kv_heads, size, dim = kv.shape[1], kv.shape[3], kv.shape[4]
    heads = query.shape[0] // kv_heads
    lines, across, out, state = scratch.lines, scratch.across, scratch.out, scratch.state
    for item in range(begin, end):
        token, rows, trunk_blocks, trunk_at, tails_at, columns, hidden, context = groups[item // kv_heads]
        head = item % kv_heads
        keys, values = kv[0, head], kv[1, head]
        count = rows * heads
        out[:count] = np.float32(0.0)
        for m in range(count):
            h, t = head * heads + m % heads, token + m // heads
            for d in range(dim):
                lines[m, d] = widen(query[h, t, d]) * scale
            state[0, m] = sinks[h] if sinks.shape[0] > 0 else -np.inf
            state[1, m] = np.float32(1.0) if sinks.shape[0] > 0 else np.float32(0.0)
        shared = trunk_blocks * size
        trunk, seen = blocks[trunk_at : trunk_at + trunk_blocks], min(hidden, shared)
        together = count > FEW and seen < shared
        if together:
            for d in range(dim):
                for m in range(across.shape[1]):
                    across[d, m] = lines[m, d] if m < count else np.float32(0.0)
            _together(keys, values, trunk, seen, shared, count, softcap, scratch)
        for r in range(rows):
            if not together:
                _alone(keys, values, trunk, seen, shared, r * heads, softcap, scratch)
            tail = blocks[tails_at + r * columns : tails_at + (r + 1) * columns]
            _alone(keys, values, tail, max(hidden - shared, 0), context - shared, r * heads, softcap, scratch)
        for m in range(count):
            norm = np.float32(1.0) / state[1, m]
            h, t = head * heads + m % heads, token + m // heads
            for d in range(dim):
                result[t, h, d] = narrow(out[m, d] * norm, result[t, h, d])
