"""bfloat16 inside compiled kernels: its bits as uint16, which numpy and numba can hold.

Kernels compute in float32 and are compiled once for float32 arrays and once for uint16 ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

Stored = NDArray[Any]
"""float32, or uint16 holding the bits of bfloat16."""

DTYPES = (torch.float32, torch.bfloat16)
"""What such kernels take."""


def stored(tensor: torch.Tensor) -> Stored:
    """The memory of a float32 or bfloat16 tensor on the CPU. Raises TypeError for other dtypes."""
    if tensor.dtype == torch.bfloat16:
        bits: Stored = tensor.view(torch.uint16).numpy()
        return bits
    if tensor.dtype not in DTYPES:
        raise TypeError(f"dtype is {tensor.dtype}; must be float32 or bfloat16")
    floats: Stored = tensor.numpy()
    return floats


def widen(value: Any) -> Any:
    """In kernels: a stored number -> float32."""
    raise NotImplementedError


def narrow(value: Any, like: Any) -> Any:
    """In kernels: float32 -> the nearest number, ties to even, stored as `like` is. NaN stays NaN."""
    raise NotImplementedError


def _widen(value: Any) -> Callable[[Any], Any]:
    if value == types.uint16:
        return lambda value: np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)
    return lambda value: value


def _narrow(value: Any, like: Any) -> Callable[[Any, Any], Any]:
    if like == types.uint16:
        return _round_to_bits
    return lambda value, like: value


def _round_to_bits(value: Any, like: Any) -> Any:
    bits = np.float32(value).view(np.uint32)
    if (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
        return np.uint16((bits >> np.uint32(16)) | np.uint32(0x40))
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return np.uint16((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))


# Not strict: it would compare annotations too.
overload(widen, strict=False)(_widen)
overload(narrow, strict=False)(_narrow)
