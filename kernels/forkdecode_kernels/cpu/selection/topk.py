"""Exact top-k over the rows of a group, without a sort of the vocabulary and without a float32 copy.

One pass over the logits leaves each tile's maximum and each row's logsumexp. A tile's best score
is the score of a real candidate, so the k-th best of these bounds the k-th best candidate from
below; only the tiles that reach it, 2 k at most, are read again.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.jit import entry, kernel
from forkdecode_kernels.cpu.selection.parallel import for_each_block
from forkdecode_kernels.cpu.selection.rows import (
    NEGATIVE_INFINITY_KEY,
    TILE,
    as_numpy,
    is_ready,
    ordered,
    row_sums,
    to_float32,
    unordered,
)
from forkdecode_kernels.cpu.selection.threshold import crossing

ROWS_PER_BLOCK = 8

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

Flat = tuple[I64, I64, I64, F32, F32]
"""group, row in the logits, token, score, logprob of candidates, best first inside each group."""


def summed_rows(
    logits: torch.Tensor, rows: I64, *, normalized: bool, threads: int
) -> tuple[I32, NDArray[np.float64], NDArray[np.bool_]]:
    """Tile maxima [m, tiles], logsumexp [m] (0 when `normalized`) and validity [m] of the chosen rows."""
    source = as_numpy(logits)
    tiles = np.empty((len(rows), -(-source.shape[1] // TILE)), np.int32)
    logsumexp = np.empty(len(rows), np.float64)
    valid = np.empty(len(rows), np.bool_)
    ready = is_ready(source)

    def work(first: int, last: int) -> None:
        block = rows[first:last]
        values = np.asarray(source, np.float32) if ready else to_float32(source[block])
        places = block if ready else np.arange(len(block))
        row_sums(values, places, tiles[first:last], logsumexp[first:last], valid[first:last], normalized)

    for_each_block(len(rows), ROWS_PER_BLOCK, threads, lambda: work)
    return tiles, logsumexp, valid


def best_candidates(
    logits: torch.Tensor,
    rows: I64,
    counts: I64,
    k: I64,
    base: F32,
    tiles: I32,
    logsumexp: NDArray[np.float64],
) -> Flat:
    """The k best of each group; groups have counts[i] of `rows` each, in order.

    base, tiles, logsumexp: one entry a row. A group of k = 0 is skipped.
    """
    shift = np.where(np.isneginf(logsumexp), 0.0, logsumexp)
    room = int(np.minimum(2 * k, counts * tiles.shape[1]).sum())
    listed = np.empty((3, room), np.int64)
    bounds = np.empty(len(counts), np.float32)
    n = _list_tiles(tiles, base, shift, counts, k, listed, bounds)
    group, row, tile = listed[:, :n]

    values, token = _tile_values(logits, rows[row], tile)
    logprobs = (values - shift[row, None]).astype(np.float32)
    scores = base[row, None] + logprobs
    at, lane = np.nonzero((scores >= bounds[group, None]) & (scores > -np.inf))
    # Tiles come in (row, token) order and lexsort is stable: ties fall to the lower row, then token.
    order = np.lexsort((-scores[at, lane], group[at]))
    at, lane = at[order], lane[order]
    best = ranks(group[at]) < k[group[at]]
    at, lane = at[best], lane[best]
    return group[at], rows[row[at]], token[at, lane], scores[at, lane], logprobs[at, lane]


def ranks(group: I64) -> I64:
    """Place of each entry among those of its group, from 0; group is sorted."""
    return np.arange(len(group)) - np.searchsorted(group, group)


def _tile_values(logits: torch.Tensor, rows: I64, tile: I64) -> tuple[F32, I64]:
    """The logits of some tiles as float32 [n, TILE] and their tokens; -inf beyond the vocabulary."""
    source = as_numpy(logits)
    token = tile[:, None] * TILE + np.arange(TILE)
    inside = token < source.shape[1]
    values = to_float32(source[rows[:, None], np.minimum(token, source.shape[1] - 1)])
    return np.where(inside, values, np.float32(-np.inf)), token


@entry
def _list_tiles(
    tiles: I32, base: F32, shift: NDArray[np.float64], counts: I64, k: I64, listed: I64, bounds: F32
) -> int:
    """(group, row, tile) of the tiles that may hold one of a group's k best -> listed; their number.

    bounds: for each group, a score that its k-th best has at least.
    """
    n = 0
    first = 0
    for g in range(counts.shape[0]):
        last = first + counts[g]
        if k[g] > 0:
            n = _list_group(tiles, base, shift, first, last, k[g], listed, n, bounds[g : g + 1])
            for i in range(n - 1, -1, -1):
                if listed[1, i] < first:
                    break
                listed[0, i] = g
        first = last
    return n


@kernel
def _list_group(
    tiles: I32,
    base: F32,
    shift: NDArray[np.float64],
    first: int,
    last: int,
    k: int,
    listed: I64,
    n: int,
    bound: F32,
) -> int:
    width = tiles.shape[1]
    total = (last - first) * width
    # Unsigned keys: the ordered integers with their sign bit turned.
    sign = np.uint32(0x80000000)
    keys = np.empty(total, np.uint32)
    for r in range(first, last):
        for t in range(width):
            logprob = np.float32(np.float64(unordered(tiles[r, t])) - shift[r])
            # + 0 makes -0 and 0 one key, as they are one score.
            key = ordered(np.float32(base[r] + logprob) + np.float32(0.0))
            keys[(r - first) * width + t] = np.uint32(key) ^ sign
    nothing = np.uint32(np.int32(NEGATIVE_INFINITY_KEY)) ^ sign
    floor = nothing
    if total >= k:
        ones = np.ones(total, np.float32)
        floor, _ = crossing(
            keys, ones, np.float64(k), np.empty(total, np.uint32), np.empty(total, np.float32)
        )
    bound[0] = unordered(np.int32(floor ^ sign))
    # Better tiles are fewer than k. Of those that only equal the bound, the first k hold k
    # candidates at the bound that come before any other tile's.
    equal = k
    for i in range(total):
        take = keys[i] > floor
        if keys[i] == floor and keys[i] > nothing and equal > 0:
            take = True
            equal -= 1
        if take:
            listed[1, n] = first + i // width
            listed[2, n] = i % width
            n += 1
    return n
