"""The k best of each row by itself. Where k nears the number of tiles nearly all of them are read again, so
here the second pass is compiled too: what reaches the bound is packed as (score, token) and sorted.
"""

from __future__ import annotations

from typing import Any

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
SORTED_AT_ONCE = 4
"""More than so many times k that reach the bound are cut to k before they are sorted."""

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

NO_SCORE = np.uint32(np.int32(NEGATIVE_INFINITY_KEY)) ^ np.uint32(0x80000000)
"""score_key of -inf."""


def best_of_rows(
    logits: torch.Tensor, rows: I64, k: I64, base: F32, *, normalized: bool, threads: int
) -> tuple[I64, I64, F32, F32, NDArray[np.bool_]]:
    """row, token, score, logprob [N] of the k[i] best of logits[rows[i]], and valid [m]; see
    forkdecode_kernels.row_candidates."""
    source = as_numpy(logits)
    count, vocab = len(rows), source.shape[1]
    wanted = np.minimum(k, vocab)
    tiles = np.empty((count, -(-vocab // TILE)), np.int32)
    shift, valid = np.empty(count, np.float64), np.empty(count, np.bool_)
    packed = np.empty((count, int(wanted.max())), np.uint64)
    found = np.empty(count, np.int64)
    ready = is_ready(source)

    def work(first: int, last: int) -> None:
        own, block = slice(first, last), rows[first:last]
        values = np.asarray(source, np.float32) if ready else to_float32(source[block])
        places = block if ready else np.arange(len(block))
        row_sums(values, places, tiles[own], shift[own], valid[own], normalized)
        shift[own][np.isneginf(shift[own])] = 0.0
        _best(
            values,
            places,
            tiles[own],
            shift[own],
            valid[own],
            wanted[own],
            base[own],
            packed[own],
            found[own],
        )

    for_each_block(count, ROWS_PER_BLOCK, threads, lambda: work)
    row, token = unpacked(packed, found)
    values = source[rows[row], token]
    logprob = (to_float32(values[None])[0] - shift[row]).astype(np.float32)
    return row, token, base[row] + logprob, logprob, valid


def unpacked(packed: U64, found: I64) -> tuple[I64, I64]:
    """row, token [N] of the first found[r] of each row of what `pack_best` packed."""
    row, at = np.nonzero(np.arange(packed.shape[1]) < found[:, None])
    return row, (packed[row, at] & np.uint64(0xFFFFFFFF)).astype(np.int64)


@entry
def _best(
    values: F32,
    places: I64,
    tiles: I32,
    shift: F64,
    valid: NDArray[np.bool_],
    k: I64,
    base: F32,
    packed: U64,
    found: I64,
) -> None:
    """The k[i] best of values[places[i]] as (score, token) -> packed [n, K] from the best down; how many
    -> found [n]."""
    vocab = values.shape[1]
    keys, spare = np.empty(vocab, np.uint32), np.empty(vocab, np.uint32)
    tokens = np.empty(vocab, np.uint32)
    ones, spare_ones = np.ones(vocab, np.float32), np.empty(vocab, np.float32)
    for i in range(places.shape[0]):
        found[i] = 0
        if not valid[i]:
            continue
        floor = _bound(tiles[i], shift[i], base[i], k[i], keys, ones, spare, spare_ones)
        n = _reaching(values[places[i]], tiles[i], shift[i], base[i], floor, keys, tokens)
        if n > SORTED_AT_ONCE * k[i]:
            floor, _ = crossing(keys[:n], ones[:n], np.float64(k[i]), spare, spare_ones)
            n = keep_keys(keys, tokens, n, floor)
        found[i] = pack_best(keys, tokens, n, k[i], packed[i])


@kernel
def score_key(value: np.float32, shift: np.float64, base: np.float32) -> np.uint32:
    """A candidate's score as an integer that orders the same way; + 0 makes -0 and 0 one."""
    logprob = np.float32(np.float64(value) - shift)
    return np.uint32(ordered(np.float32(base + logprob) + np.float32(0.0))) ^ np.uint32(0x80000000)


@kernel
def _bound(
    tiles: I32,
    shift: np.float64,
    base: np.float32,
    k: int,
    keys: U32,
    ones: F32,
    spare: U32,
    spare_ones: F32,
) -> np.uint32:
    """A key that the k-th best has at least: a tile's best is a candidate. Above that of -inf."""
    count = tiles.shape[0]
    if count < k:
        return np.uint32(NO_SCORE + np.uint32(1))
    for t in range(count):
        keys[t] = score_key(unordered(tiles[t]), shift, base)
    floor, _ = crossing(keys[:count], ones[:count], np.float64(k), spare, spare_ones)
    return max(floor, np.uint32(NO_SCORE + np.uint32(1)))


@kernel
def _reaching(
    row: F32, tiles: I32, shift: np.float64, base: np.float32, floor: np.uint32, keys: U32, tokens: U32
) -> int:
    """The candidates of keys from `floor` up, in the order of tokens -> keys, tokens; their number."""
    n = 0
    for t in range(tiles.shape[0]):
        if score_key(unordered(tiles[t]), shift, base) < floor:
            continue
        for j in range(t * TILE, min((t + 1) * TILE, row.shape[0])):
            key = score_key(row[j], shift, base)
            if key >= floor:
                keys[n] = key
                tokens[n] = np.uint32(j)
                n += 1
    return n


@kernel
def pack_best(keys: U32, tokens: Any, n: int, k: int, packed: U64) -> int:
    """The k best of n candidates as (score, token), of equals the lower token first -> packed; how many."""
    order = np.empty(n, np.uint64)
    for j in range(n):
        order[j] = (np.uint64(~keys[j]) << np.uint64(32)) | np.uint64(tokens[j])
    order.sort()
    n = min(n, k)
    packed[:n] = order[:n]
    return n


@kernel
def keep_keys(keys: U32, tokens: Any, n: int, floor: np.uint32) -> int:
    """Those of keys from `floor` up, moved to the front."""
    m = 0
    for i in range(n):
        if keys[i] >= floor:
            keys[m] = keys[i]
            tokens[m] = tokens[i]
            m += 1
    return m
