"""Columns of several groups, one behind the other in one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=np.generic)


def parts(values: NDArray[T], counts: Sequence[int]) -> list[NDArray[T]]:
    """values [sum of counts, ...] -> each group's own, as views; counts: at least one, none of them 0."""
    if min(counts) == max(counts):
        # A list of an array's rows costs a third of as many slices.
        return list(values.reshape(len(counts), counts[0], *values.shape[1:]))
    found, start = [], 0
    for count in counts:
        found.append(values[start : start + count])
        start += count
    return found
