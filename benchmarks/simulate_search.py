"""The rate up to which a load is carried: found by doubling or halving, then by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable


def limit(carried: Callable[[float], bool], start: float, precision: float) -> tuple[float, float]:
    """carried: whether a rate is. start: a first guess, above 0 -> a rate that is and one that is not,
    apart by a factor of at most 1 + precision. Raises ValueError where a factor of 2^10 finds none."""
    low, high = _bracket(carried, start)
    while high > low * (1 + precision):
        middle = math.sqrt(low * high)
        if carried(middle):
            low = middle
        else:
            high = middle
    return low, high


def _bracket(carried: Callable[[float], bool], start: float) -> tuple[float, float]:
    rate, first = start, carried(start)
    for _ in range(10):
        last, rate = rate, rate * 2 if first else rate / 2
        if carried(rate) != first:
            return (last, rate) if first else (rate, last)
    raise ValueError(f"every rate between {start:g} and {rate:g} is {'' if first else 'not '}carried")
