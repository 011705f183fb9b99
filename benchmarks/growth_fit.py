"""The exponent of a growth."""

from __future__ import annotations

import numpy as np


def exponent(sizes: list[float], values: list[float]) -> float:
    """The slope of log value over log size, in the upper half of the sizes (three of them at least).
    Raises ValueError where there are fewer than two sizes."""
    if len(sizes) < 2:
        raise ValueError("an exponent needs two sizes")
    kept = slice(min(len(sizes) // 2, max(0, len(sizes) - 3)), None)
    x, y = np.log(sizes[kept]), np.log(np.maximum(values[kept], 1e-9))
    return float(np.polyfit(x, y, 1)[0])
