"""What a row may continue with, as a short list with weights: what masking the row would leave, bit for bit.

Sums are taken as `rows.exponentials` takes them, over chunks of the vocabulary whose other weights are 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.filters import keep_min_p, keep_top_p
from forkdecode_kernels.cpu.selection.jit import kernel
from forkdecode_kernels.cpu.selection.rows import CHUNK, exponential, fold, ordered, unordered
from forkdecode_kernels.cpu.selection.scratch import Scratch
from forkdecode_kernels.cpu.selection.threshold import crossing
from forkdecode_kernels.cpu.selection.typical import keep_typical

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

_SIGN = np.uint32(0x80000000)
_NOTHING = np.float32(-np.inf)


@kernel
def list_tokens(tokens: I32, ends: Bools, start: int, stop: int, also_ids: I64, skips: bool, ids: I32) -> int:
    """tokens[start:stop] and also_ids, both ascending, as one ascending list without repetitions -> ids; how
    many. skips: without entries that end, unless they are among also_ids."""
    n, at, beside = 0, start, 0
    while at < stop or beside < also_ids.shape[0]:
        if beside == also_ids.shape[0] or (at < stop and tokens[at] < also_ids[beside]):
            if not (skips and ends[at]):
                ids[n] = tokens[at]
                n += 1
            at += 1
        else:
            if at < stop and tokens[at] == also_ids[beside]:
                at += 1
            ids[n] = np.int32(also_ids[beside])
            n += 1
            beside += 1
    return n


@kernel
def best_listed(row: F32, ids: I32) -> np.float32:
    """The highest of the listed logits; -inf for none."""
    best = _NOTHING
    for j in range(ids.shape[0]):
        best = max(best, row[ids[j]])
    return best


@kernel
def weigh(row: F32, n: int, maximum: np.float32, scale: np.float32, scratch: Scratch) -> np.float64:
    """exp((logit - maximum) * scale) of the n listed -> scratch.weights, its sum over each chunk of the
    vocabulary -> scratch.sums; returns the whole sum."""
    ids, weights, sums = scratch.ids, scratch.weights, scratch.sums
    buffer = np.empty(CHUNK, np.float32)
    total = np.float64(0.0)
    j = 0
    for c in range(sums.shape[0]):
        sums[c] = 0.0
        last = (c + 1) * CHUNK
        if j == n or ids[j] >= last:
            continue
        buffer[:] = np.float32(0.0)
        while j < n and ids[j] < last:
            weights[j] = exponential((row[ids[j]] - maximum) * scale)
            buffer[ids[j] - c * CHUNK] = weights[j]
            j += 1
        sums[c] = np.float64(fold(buffer))
        total += sums[c]
    return total


@kernel
def keep_top_k(row: F32, n: int, k: int, maximum: np.float32, scale: np.float32, scratch: Scratch) -> int:
    """Of the n listed those whose logit is not below the k-th largest, with their weights; none of -inf."""
    ids, weights, keys = scratch.ids, scratch.weights, scratch.keys
    kth = _NOTHING
    if n > k:
        for j in range(n):
            keys[j] = np.uint32(ordered(row[ids[j]])) ^ _SIGN
        weights[:n] = np.float32(1.0)
        key, _ = crossing(keys[:n], weights[:n], np.float64(k), scratch.spare_keys, scratch.spare_weights)
        kth = unordered(np.int32(key ^ _SIGN))
    kept = 0
    for j in range(n):
        value = row[ids[j]]
        if value >= kth and value > _NOTHING:
            ids[kept] = ids[j]
            weights[kept] = exponential((value - maximum) * scale)
            kept += 1
    return kept


@kernel
def survivors(
    row: F32,
    n: int,
    maximum: np.float32,
    scale: np.float32,
    top_k: int,
    top_p: np.float64,
    min_p: np.float64,
    typical_p: np.float64,
    scratch: Scratch,
) -> int:
    """What the filters leave of the n listed, and of more than no weight; how many."""
    total = np.float64(0.0)
    if 0 < top_k < row.shape[0]:
        n = keep_top_k(row, n, top_k, maximum, scale, scratch)
        for j in range(n):
            total += np.float64(scratch.weights[j])
    else:
        total = weigh(row, n, maximum, scale, scratch)
        kept = 0
        for j in range(n):
            scratch.ids[kept], scratch.weights[kept] = scratch.ids[j], scratch.weights[j]
            kept += 1 if scratch.weights[j] > np.float32(0.0) else 0
        n = kept
    if top_p < 1.0:
        n = keep_top_p(n, top_p * total, scratch)
    if min_p > 0.0:
        n = keep_min_p(n, min_p, scratch)
    if typical_p < 1.0:
        n = keep_typical(row, maximum, scale, n, typical_p, scratch)
    return n
