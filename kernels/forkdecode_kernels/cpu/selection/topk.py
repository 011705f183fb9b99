"""Exact top-k over the rows of a group, without a sort of the vocabulary and without a float32 copy.

One pass over the logits leaves each tile's maximum and each row's logsumexp. A tile's best score
is the score of a real candidate, so the k-th best of these bounds the k-th best candidate from
below; only the tiles that reach it, 2 k at most, are read again.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.jit import entry
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
    ends = np.cumsum(counts)
    bounds = np.empty(len(counts), np.float32)
    found = [
        _reaching(tiles[end - n : end], base[end - n : end], shift[end - n : end], wanted, bounds[g : g + 1])
        for g, (end, n, wanted) in enumerate(zip(ends, counts, k, strict=True))
    ]
    group = np.repeat(np.arange(len(counts)), [len(f[0]) for f in found])
    row = np.concatenate([f[0] + end - n for f, end, n in zip(found, ends, counts, strict=True)])
    tile = np.concatenate([f[1] for f in found])

    values, token = _tile_values(logits, rows[row], tile)
    logprobs = (values - shift[row, None]).astype(np.float32)
    scores = base[row, None] + logprobs
    at, lane = np.nonzero((scores >= bounds[group, None]) & (scores > -np.inf))
    flat_scores = scores[at, lane]
    # Tiles come in (row, token) order and lexsort is stable: ties fall to the lower row, then token.
    order = np.lexsort((-flat_scores, group[at]))
    at, lane = at[order], lane[order]
    owner = group[at]
    rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
    best = rank < k[owner]
    at, lane = at[best], lane[best]
    return group[at], rows[row[at]], token[at, lane], scores[at, lane], logprobs[at, lane]


def _tile_values(logits: torch.Tensor, rows: I64, tile: I32) -> tuple[F32, I64]:
    """The logits of some tiles as float32 [n, TILE] and their tokens; -inf beyond the vocabulary."""
    source = as_numpy(logits)
    token = tile.astype(np.int64)[:, None] * TILE + np.arange(TILE)
    inside = token < source.shape[1]
    values = to_float32(source[rows[:, None], np.minimum(token, source.shape[1] - 1)])
    return np.where(inside, values, np.float32(-np.inf)), token


def _reaching(tiles: I32, base: F32, shift: NDArray[np.float64], k: int, bound: F32) -> tuple[I32, I32]:
    """(row, tile) of the tiles that may hold one of a group's k best, in order; the bound -> bound[0]."""
    keys = np.empty(tiles.size, np.int32)
    rows = np.empty(min(2 * k, tiles.size), np.int32)
    columns = np.empty(min(2 * k, tiles.size), np.int32)
    n = _list_tiles(tiles, base, shift, k, keys, rows, columns, bound)
    return rows[:n], columns[:n]


@entry
def _list_tiles(
    tiles: I32, base: F32, shift: NDArray[np.float64], k: int, keys: I32, rows: I32, columns: I32, bound: F32
) -> int:
    count, width = tiles.shape
    sign = np.uint32(0x80000000)
    total = 0
    for r in range(count):
        for t in range(width):
            logprob = np.float32(np.float64(unordered(tiles[r, t])) - shift[r])
            # + 0 makes -0 and 0 one key, as they are one score.
            key = ordered(np.float32(base[r] + logprob) + np.float32(0.0))
            keys[total] = key
            total += 1
    floor = np.int32(NEGATIVE_INFINITY_KEY)
    if total >= k:
        unsigned = np.empty(total, np.uint32)
        for i in range(total):
            unsigned[i] = np.uint32(keys[i]) ^ sign
        ones = np.ones(total, np.float32)
        edge, _ = crossing(
            unsigned, ones, np.float64(k), np.empty(total, np.uint32), np.empty(total, np.float32)
        )
        floor = np.int32(edge ^ sign)
    bound[0] = unordered(floor)
    # Better tiles are fewer than k. Of those that only equal the bound, the first k hold k
    # candidates at the bound that come before any other tile's.
    equal = k
    n = 0
    for i in range(total):
        take = keys[i] > floor
        if keys[i] == floor and keys[i] > NEGATIVE_INFINITY_KEY and equal > 0:
            take = True
            equal -= 1
        if take:
            rows[n] = np.int32(i // width)
            columns[n] = np.int32(i % width)
            n += 1
    return n
