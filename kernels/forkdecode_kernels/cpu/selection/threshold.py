"""Where a descending order by key reaches a given total weight, found without sorting.

Radix selection on 32-bit keys, 11 + 11 + 10 bits: histogram of weights, walk to the bin that
crosses, go on inside it. Linear in the number of keys, whatever they are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.jit import kernel

BINS = 2048


@kernel
def crossing(
    keys: NDArray[np.uint32],
    weights: NDArray[np.float32],
    target: np.float64,
    spare_keys: NDArray[np.uint32],
    spare_weights: NDArray[np.float32],
) -> tuple[np.uint32, np.float64]:
    """(key, before): the largest key at which the weight of keys >= it reaches target.

    keys, weights [n]; before is the weight of all larger keys. If the total stays below the target,
    the smallest key. spare_*: scratch of n, may hold anything.
    """
    bins = np.empty(BINS, np.float64)
    before = np.float64(0.0)
    found = np.uint32(0)
    level_keys = keys
    level_weights = weights
    size = keys.shape[0]
    for level in range(3):
        shift = np.uint32(21 if level == 0 else (10 if level == 1 else 0))
        mask = np.uint32(0x7FF if level < 2 else 0x3FF)
        bins[:] = -1.0
        for i in range(size):
            b = (level_keys[i] >> shift) & mask
            bins[b] = max(bins[b], 0.0) + np.float64(level_weights[i])
        at, before = _walk(bins, before, target)
        found |= np.uint32(at) << shift
        if level == 2:
            break
        n = 0
        for i in range(size):
            # In place is safe: n never passes i.
            key = level_keys[i]
            weight = level_weights[i]
            if (key >> shift) & mask == np.uint32(at):
                spare_keys[n] = key
                spare_weights[n] = weight
                n += 1
        level_keys = spare_keys
        level_weights = spare_weights
        size = n
    return found, before


@kernel
def _walk(bins: NDArray[np.float64], before: np.float64, target: np.float64) -> tuple[int, np.float64]:
    """The first bin from the top, of those in use (not negative), to reach the target; what is above it."""
    lowest = -1
    above = before
    for b in range(BINS - 1, -1, -1):
        if bins[b] < 0.0:
            continue
        if lowest >= 0:
            above += bins[lowest]
        lowest = b
        if above + bins[b] >= target:
            break
    return lowest, above
