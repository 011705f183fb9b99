"""The likeliest tokens of a row that is drawn from: as it came, and of the distribution drawn from. The draw
has the row's tile maxima and sums at hand, so that few of its tokens are read again.

A log-probability is float32(float64((logit - maximum) * scale) - log_total), as the draw's own are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.jit import kernel
from forkdecode_kernels.cpu.selection.row_best import NO_SCORE, SORTED_AT_ONCE, keep_keys, pack_best
from forkdecode_kernels.cpu.selection.rows import TILE, ordered, unordered
from forkdecode_kernels.cpu.selection.scratch import Scratch
from forkdecode_kernels.cpu.selection.threshold import crossing

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


class Tops(NamedTuple):
    """k [m]: how many are wanted of each row, 0 for none. The rest [m, K], best first, id -1 with -inf where
    there are no more: raw, of the row as it came; shown, of what is drawn from."""

    k: I64
    raw_ids: I64
    raw: F32
    shown_ids: I64
    shown: F32


def make_tops(k: I64) -> Tops:
    """Nothing found yet."""
    shape = (len(k), int(k.max(initial=0)))
    ids, values = np.full((2, *shape), -1, np.int64), np.full((2, *shape), -np.inf, np.float32)
    return Tops(k, ids[0], values[0], ids[1], values[1])


@kernel
def top_of_row(
    row: F32,
    k: int,
    maximum: np.float32,
    scale: np.float32,
    log_total: float,
    scratch: Scratch,
    ids_out: I64,
    out: F32,
) -> None:
    """The k likeliest of all tokens -> ids_out, out. Overwrites all of scratch but tiles."""
    tiles, keys, tokens = scratch.tiles, scratch.keys, scratch.ids
    wanted = min(k, row.shape[0])
    floor = np.uint32(NO_SCORE + np.uint32(1))
    if tiles.shape[0] >= wanted:
        # A tile's best is a token, so that the k-th best token is at least the k-th best tile's.
        for t in range(tiles.shape[0]):
            keys[t] = _key(_logprob(unordered(tiles[t]), maximum, scale, log_total))
        floor = max(floor, _kth(tiles.shape[0], wanted, scratch))
    n = 0
    for t in range(tiles.shape[0]):
        if _key(_logprob(unordered(tiles[t]), maximum, scale, log_total)) < floor:
            continue
        for j in range(t * TILE, min((t + 1) * TILE, row.shape[0])):
            key = _key(_logprob(row[j], maximum, scale, log_total))
            if key >= floor:
                keys[n] = key
                tokens[n] = np.int32(j)
                n += 1
    _best(row, n, wanted, maximum, scale, log_total, scratch, ids_out, out)


@kernel
def top_of_listed(
    row: F32,
    n: int,
    k: int,
    maximum: np.float32,
    scale: np.float32,
    log_total: float,
    scratch: Scratch,
    ids_out: I64,
    out: F32,
) -> None:
    """The k likeliest of the n tokens in scratch.ids -> ids_out, out. Overwrites all of scratch but tiles."""
    for j in range(n):
        scratch.keys[j] = _key(_logprob(row[scratch.ids[j]], maximum, scale, log_total))
    _best(row, n, min(k, row.shape[0]), maximum, scale, log_total, scratch, ids_out, out)


@kernel
def _best(
    row: F32,
    n: int,
    k: int,
    maximum: np.float32,
    scale: np.float32,
    log_total: float,
    scratch: Scratch,
    ids_out: I64,
    out: F32,
) -> None:
    keys, tokens = scratch.keys, scratch.ids
    if n > SORTED_AT_ONCE * k:
        n = keep_keys(keys, tokens, n, _kth(n, k, scratch))
    packed = np.empty(k, np.uint64)
    n = pack_best(keys, tokens, n, k, packed)
    for i in range(n):
        token = np.int64(packed[i] & np.uint64(0xFFFFFFFF))
        ids_out[i] = token
        out[i] = _logprob(row[token], maximum, scale, log_total)


@kernel
def _kth(n: int, k: int, scratch: Scratch) -> np.uint32:
    """The k-th largest of n keys."""
    ones = scratch.weights[:n]
    ones[:] = np.float32(1.0)
    floor, _ = crossing(scratch.keys[:n], ones, np.float64(k), scratch.spare_keys, scratch.spare_weights)
    return np.uint32(floor)


@kernel
def _logprob(logit: np.float32, maximum: np.float32, scale: np.float32, log_total: float) -> Any:
    return np.float32(np.float64((logit - maximum) * scale) - log_total)


@kernel
def _key(logprob: np.float32) -> np.uint32:
    """An integer that orders the same way; + 0 makes -0 and 0 one."""
    return np.uint32(ordered(logprob + np.float32(0.0))) ^ np.uint32(0x80000000)
