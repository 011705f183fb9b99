"""Which tokens of one row survive its filters: a short list in token-id order instead of a sorted row.

Survivors carry their weight exp((logit - maximum) / temperature), 1 for the best. Each filter
shortens the list in place.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.jit import kernel
from forkdecode_kernels.cpu.selection.rows import TILE, exponential, ordered, sum_below, unordered
from forkdecode_kernels.cpu.selection.scratch import Scratch
from forkdecode_kernels.cpu.selection.threshold import crossing
from forkdecode_kernels.cpu.selection.typical import keep_typical

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

BISECTIONS = 6
STRIP = 32
"""Tokens that are skipped together when none is wanted."""
SMALLEST = np.float32(1e-45)

_SIGN = np.uint32(0x80000000)


@kernel
def gather_top_k(row: F32, k: int, maximum: np.float32, scale: np.float32, scratch: Scratch) -> int:
    """List the tokens whose logit is not below the k-th largest (ties all stay); returns how many."""
    tiles, ids, keys = scratch.tiles, scratch.ids, scratch.keys
    floor = np.int32(-0x7FFFFFFF)
    if tiles.shape[0] >= k:
        # The k-th largest tile maximum is itself a logit, so at least k logits reach it.
        for t in range(tiles.shape[0]):
            keys[t] = np.uint32(tiles[t]) ^ _SIGN
        floor = _kth(tiles.shape[0], k, scratch)
        # -0, a tie of 0, has the integer below it.
        floor = np.int32(-1) if floor == 0 else floor
    n = 0
    for t in range(tiles.shape[0]):
        if tiles[t] < floor:
            continue
        for i in range(t * TILE, min(row.shape[0], (t + 1) * TILE)):
            key = ordered(row[i])
            ids[n] = np.int32(i)
            keys[n] = np.uint32(key) ^ _SIGN
            n += 1 if key >= floor else 0
    return keep_from(row, n, unordered(_kth(n, k, scratch)), maximum, scale, scratch)


@kernel
def keep_top_k(row: F32, n: int, k: int, maximum: np.float32, scale: np.float32, scratch: Scratch) -> int:
    """Of the n listed those that gather_top_k would list."""
    kth = np.float32(-np.inf)
    if n > k:
        for j in range(n):
            scratch.keys[j] = np.uint32(ordered(row[scratch.ids[j]])) ^ _SIGN
        kth = unordered(_kth(n, k, scratch))
    return keep_from(row, n, kth, maximum, scale, scratch)


@kernel
def keep_from(
    row: F32, n: int, lowest: np.float32, maximum: np.float32, scale: np.float32, scratch: Scratch
) -> int:
    """Of the n listed those whose logit is not below `lowest`, with their weights; none of -inf."""
    ids, kept = scratch.ids, 0
    for j in range(n):
        value = row[ids[j]]
        if value >= lowest and value > -np.inf:
            ids[kept] = ids[j]
            scratch.weights[kept] = exponential((value - maximum) * scale)
            kept += 1
    return kept


@kernel
def _kth(n: int, k: int, scratch: Scratch) -> np.int32:
    """Ordered integer of the k-th largest of n keys. Overwrites the weights."""
    ones = scratch.weights[:n]
    ones[:] = np.float32(1.0)
    key, _ = crossing(scratch.keys[:n], ones, np.float64(k), scratch.spare_keys, scratch.spare_weights)
    return np.int32(key ^ _SIGN)


@kernel
def top_p_floor(weights: F32, total: np.float64, top_p: np.float64) -> np.float64:
    """A weight below which nothing is in top-p: all that is below it weighs at most 1 - p together.

    Found by a few bisections of its logarithm, each one vectorised sum. (1 - p) / V of the total
    always qualifies, and the best weight is 1.
    """
    # Short of the exact amount by more than the float32 sums may err.
    spare = (1.0 - top_p) * total * 0.9999
    floor = np.float64(spare / weights.shape[0])
    roof = np.float64(1.0)
    for _ in range(BISECTIONS):
        middle = np.sqrt(floor * roof)
        if sum_below(weights, np.float32(middle)) <= spare:
            floor = middle
        else:
            roof = middle
    return floor


@kernel
def gather_above(
    size: int, floor: np.float64, maximum: np.float32, scale: np.float32, scratch: Scratch
) -> int:
    """List the tokens of 0 .. size whose weight is above 0 and not below floor; returns how many."""
    exps, ids, weights = scratch.exps, scratch.ids, scratch.weights
    lowest = max(np.float32(floor), SMALLEST)
    # Unsigned, so that no index is checked for being negative.
    n = np.uint64(0)
    for t in range(scratch.tiles.shape[0]):
        best = exponential((unordered(scratch.tiles[t]) - maximum) * scale)
        # With a margin, as this exponential may be compiled with other roundings than the stored ones.
        if best < lowest * np.float32(0.9999):
            continue
        for start in range(t * TILE, min(size, (t + 1) * TILE), STRIP):
            strip = exps[start : min(size, start + STRIP)]
            if not _any_from(strip, lowest):
                continue
            for i in range(strip.shape[0]):
                ids[n] = np.int32(start + i)
                weights[n] = strip[i]
                n += np.uint64(strip[i] >= lowest)
    return int(np.int64(n))


@kernel
def _any_from(strip: F32, lowest: np.float32) -> bool:
    # Not over STRIP tokens by name: unrolled for a known number they are compared one by one.
    hit = np.int32(0)
    for i in range(strip.shape[0]):
        hit |= np.int32(strip[i] >= lowest)
    return bool(hit != 0)


@kernel
def keep_top_p(n: int, target: np.float64, scratch: Scratch) -> int:
    """Keep the likeliest tokens until their weight reaches target: those with less than it before them.

    Of equal weights at the edge the lower ids stay.
    """
    ids, weights = scratch.ids, scratch.weights
    # Positive floats order as their bits do.
    bits = weights.view(np.uint32)
    edge, before = crossing(bits[:n], weights[:n], target, scratch.spare_keys, scratch.spare_weights)
    kept = 0
    for j in range(n):
        w = weights[j]
        key = bits[j]
        keep = key > edge
        if key == edge:
            keep = before < target
            before += np.float64(w)
        ids[kept] = ids[j]
        weights[kept] = w
        kept += 1 if keep else 0
    return max(kept, 1)


@kernel
def keep_min_p(n: int, min_p: np.float64, scratch: Scratch) -> int:
    """Keep weights of min_p and more; the best token's weight is 1."""
    ids, weights = scratch.ids, scratch.weights
    kept = 0
    for j in range(n):
        w = weights[j]
        ids[kept] = ids[j]
        weights[kept] = w
        kept += 1 if w >= min_p else 0
    return kept


@kernel
def shorten(
    row: F32, n: int, total: np.float64, maximum: np.float32, scale: np.float32,
    top_p: np.float64, min_p: np.float64, typical_p: np.float64, scratch: Scratch,
) -> int:  # fmt: skip
    """What top-p, min-p and typical sampling, in this order, leave of the n listed, which weigh `total`."""
    if top_p < 1.0:
        n = keep_top_p(n, top_p * total, scratch)
    if min_p > 0.0:
        n = keep_min_p(n, min_p, scratch)
    if typical_p < 1.0:
        n = keep_typical(row, maximum, scale, n, typical_p, scratch)
    return n
