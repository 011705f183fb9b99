"""What a row may continue with, as a short list with weights: what masking the row would leave, bit for bit.

Sums are taken as `rows.exponentials` takes them, over chunks of the vocabulary whose other weights are 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.draw import Settings
from forkdecode_kernels.cpu.selection.filters import keep_top_k, shorten
from forkdecode_kernels.cpu.selection.jit import kernel
from forkdecode_kernels.cpu.selection.listed import Lists
from forkdecode_kernels.cpu.selection.rows import CHUNK, exponential, fold
from forkdecode_kernels.cpu.selection.scratch import Scratch
from forkdecode_kernels.cpu.selection.weights import accumulate

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


@kernel
def list_tokens(lists: Lists, r: int, ids: I32) -> int:
    """What row r may continue with, of lists as `readable` makes them, ascending -> ids; how many."""
    tokens, ends, also_ids = lists.tokens, lists.ends, lists.also_ids
    at, stop = lists.start[r], lists.stop[r]
    n, beside, others = 0, 0, also_ids.shape[0] if lists.also[r] else 0
    while at < stop or beside < others:
        if beside == others or (at < stop and tokens[at] < also_ids[beside]):
            if not (lists.without_ends and ends[at]):
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
    best = np.float32(-np.inf)
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
def remaining(
    row: F32, r: int, n: int, maximum: np.float32, scale: np.float32, settings: Settings, scratch: Scratch
) -> tuple[int, np.float64, bool]:
    """What the filters of settings[r] leave of the n listed: how many, their weight, and whether there are
    any filters. With them, cumulative weights are in scratch.cumulative; without, see `weigh`."""
    top_k, top_p, min_p = settings.top_k[r], settings.top_p[r], settings.min_p[r]
    typical_p, short = settings.typical_p[r], 0 < top_k < row.shape[0]
    if not (short or top_p < 1.0 or min_p > 0.0 or typical_p < 1.0):
        return n, weigh(row, n, maximum, scale, scratch), False
    if short:
        n = keep_top_k(row, n, top_k, maximum, scale, scratch)
        total = accumulate(n, scratch)
    else:
        total = weigh(row, n, maximum, scale, scratch)
        kept = 0
        for j in range(n):
            scratch.ids[kept], scratch.weights[kept] = scratch.ids[j], scratch.weights[j]
            kept += 1 if scratch.weights[j] > np.float32(0.0) else 0
        n = kept
    n = shorten(row, n, total, maximum, scale, top_p, min_p, typical_p, scratch)
    return n, accumulate(n, scratch), True
