"""A row's weights: what temperature makes of a logit, running sums, and where a target falls in them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.jit import kernel
from forkdecode_kernels.cpu.selection.scratch import Scratch

F64 = NDArray[np.float64]


@kernel
def scale_of(temperature: np.float64) -> np.float32:
    """1 / temperature, finite."""
    return np.float32(min(1.0 / max(temperature, 1e-30), 1e30))


@kernel
def accumulate(n: int, scratch: Scratch) -> np.float64:
    """The sum of the first n of scratch.weights; the sums up to each -> scratch.cumulative."""
    total = np.float64(0.0)
    for j in range(n):
        total += np.float64(scratch.weights[j])
        scratch.cumulative[j] = total
    return total


@kernel
def place_in(cumulative: F64, target: np.float64) -> int:
    """The first place whose cumulative weight exceeds target, or the last."""
    low, high = 0, cumulative.shape[0] - 1
    while low < high:
        middle = (low + high) // 2
        if cumulative[middle] > target:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def chunk_in(sums: F64, target: np.float64) -> tuple[int, np.float64, bool]:
    """The chunk in which cumulative weight exceeds target, the weight before it, and True. Rounding may leave
    the target a hair beyond the last sum: then the last chunk of any weight, all weight, and False."""
    before = np.float64(0.0)
    last = 0
    for t in range(sums.shape[0]):
        if sums[t] > 0.0:
            last = t
            if before + sums[t] > target:
                return last, before, True
            before += sums[t]
    return last, before, False
