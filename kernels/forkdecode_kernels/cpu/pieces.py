"""Query rows that read the same tokens: a matrix product over blocks where they lie, piece by piece.

Scores are [tokens, query rows], so that maxima and exponentials run over vectors of query rows, with a
running softmax over the pieces (Milakov and Gimelshein, arXiv 1805.02867, section 3). Pieces end at fixed
tokens and a row's sums go in the order of tokens, so that its bits don't depend on who reads beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from forkdecode_kernels.attention_work import I32
from forkdecode_kernels.cpu.half import Stored, widen
from forkdecode_kernels.cpu.selection.jit import kernel
from forkdecode_kernels.cpu.tile import product
from forkdecode_kernels.cpu.vectors import LANES, rescale, weigh_columns

F32 = NDArray[np.float32]
PIECE = 128
"""Tokens whose scores are kept at once: they stay in the first cache levels."""


class Scratch(NamedTuple):
    """One thread's memory. M query rows and D dimensions, both up to multiples of LANES.

    lines [M, D]: queries times scale; across [D, M]: the same; out [M, D]; scores [PIECE, M];
    alone [G, PIECE + LANES]: one row's scores; copied [tokens of a piece or of a block, D]: those that
    can't be read where they lie; state [3, M]: as weigh_columns has it.
    """

    lines: F32
    across: F32
    out: F32
    scores: F32
    alone: F32
    copied: F32
    state: F32


def padded(count: int) -> int:
    """Up to a multiple of LANES."""
    return -(-count // LANES) * LANES


def tokens_at(cache: Any, table: Any, start: Any, stop: Any, buffer: Any) -> Any:
    """In kernels: tokens of a table from `start` on, as float32 [n, whole vectors of D]: (address, n).

    n is at most stop - start. cache [B, S, D]. Those of consecutive blocks are read where they lie if they
    can be, others from their copy in `buffer`.
    """
    raise NotImplementedError


def _tokens_at(cache: Any, table: Any, start: Any, stop: Any, buffer: Any) -> Callable[..., Any]:
    return _copied if cache.dtype == types.uint16 else _in_place


def _in_place(cache: Any, table: Any, start: Any, stop: Any, buffer: Any) -> Any:
    size, dim = cache.shape[1], cache.shape[2]
    if dim % LANES:
        return _copy(cache, table, start, stop, buffer)
    block = start // size
    last = block
    while (last + 1) * size < stop and table[last + 1] == table[last] + 1:
        last += 1
    address = cache.ctypes.data + 4 * dim * (size * np.int64(table[block]) + start % size)
    return address, min((last + 1) * size, stop) - start


def _copied(cache: Any, table: Any, start: Any, stop: Any, buffer: Any) -> Any:
    return _copy(cache, table, start, stop, buffer)


overload(tokens_at, strict=False)(_tokens_at)


@kernel
def _copy(cache: Stored, table: I32, start: int, stop: int, buffer: F32) -> tuple[int, int]:
    size = cache.shape[1]
    t = start
    while t < stop:
        number, offset = table[t // size], t % size
        n = min(size - offset, stop - t)
        for i in range(n):  # the block is looked up outside the loop over a line, which then becomes vectors
            for d in range(cache.shape[2]):
                buffer[t - start + i, d] = widen(cache[number, offset + i, d])
        t += n
    address: int = buffer.ctypes.data
    return address, stop - start


@kernel
def cap(scores: F32, columns: int, softcap: np.float32) -> None:
    """softcap * tanh(scores / softcap), of the first columns."""
    for t in range(scores.shape[0]):
        for m in range(columns):
            scores[t, m] = softcap * np.tanh(scores[t, m] / softcap)


@kernel
def _hide(scores: F32, start: int, end: int, position: int, heads: int, window: int, count: int) -> None:
    """-inf for the tokens start .. end that a query row does not see: row m is at position + m // heads."""
    for t in range(max(start, position + 1), end):
        for m in range(min(count, (t - position) * heads)):
            scores[t - start, m] = -np.inf
    if window > 0:
        for t in range(start, end):
            for m in range(max(0, (t + window - position) * heads), count):
                scores[t - start, m] = -np.inf


@kernel
def together(
    keys: Stored, values: Stored, table: I32, start: int, stop: int, position: int, window: int, count: int,
    softcap: np.float32, scratch: Scratch,
) -> None:  # fmt: skip
    """Tokens start .. stop of a table, for the first `count` query rows at once, G of each position from
    `position` on, which see what lies up to there, and within the window if it isn't 0."""
    dim, width, heads = scratch.out.shape[1], scratch.scores.shape[1], scratch.alone.shape[0]
    across, scores = scratch.across.ctypes.data, scratch.scores.ctypes.data
    out, state = scratch.out.ctypes.data, scratch.state.ctypes.data
    wide = -(-count // LANES) * LANES
    while start < stop:
        end = min((start // PIECE + 1) * PIECE, stop)
        t = start
        while t < end:
            key, n = tokens_at(keys, table, t, end, scratch.copied)
            product(key, dim, 1, across, width, scores + 4 * (t - start) * width, width, n, wide, dim, 0)
            t += n
        if softcap > np.float32(0.0):
            cap(scratch.scores[: end - start], wide, softcap)
        _hide(scratch.scores, start, end, position, heads, window, count)
        for j in range(0, wide, LANES):
            weigh_columns(scores + 4 * j, width, end - start, state + 4 * j, width)
        rescale(out, dim // LANES, state + 8 * width, count)
        t = start
        while t < end:
            value, n = tokens_at(values, table, t, end, scratch.copied)
            product(scores + 4 * (t - start) * width, 1, width, value, dim, out, dim, count, dim, n, 1)
            t += n
        start = end
