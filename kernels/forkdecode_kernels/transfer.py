"""One small copy each way: what an operation wants from the host, and what it tells it.

A copy to a GPU or back costs some ten microseconds however small it is, and one back waits for all work
before it. So an operation packs what it has into one buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_ALIGNED = 8
"""Bytes: of every array's beginning, so that it can be viewed as what it is."""


def to_device(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Each array on `device`, by one copy: views of one buffer."""
    parts = [np.ascontiguousarray(a) for a in arrays]
    starts, size = _places([a.nbytes for a in parts])
    packed = np.zeros(size, np.uint8)
    for a, start in zip(parts, starts, strict=True):
        packed[start : start + a.nbytes] = a.reshape(-1).view(np.uint8)
    sent = torch.from_numpy(packed).to(device)
    return [_viewed(sent, start, a) for a, start in zip(parts, starts, strict=True)]


def to_host(tensors: Sequence[torch.Tensor]) -> list[NDArray[Any]]:
    """Each tensor as an array, by one copy. All are of one device; bool comes as bool."""
    parts = [t.contiguous().view(-1, 1).view(torch.uint8).view(-1) for t in tensors]
    starts, size = _places([len(p) for p in parts])
    packed = torch.empty(size, dtype=torch.uint8, device=parts[0].device)
    for part, start in zip(parts, starts, strict=True):
        packed[start : start + len(part)] = part
    host = packed.cpu().numpy()
    return [
        host[start : start + len(part)].view(_NUMPY[t.dtype]).reshape(t.shape)
        for t, part, start in zip(tensors, parts, starts, strict=True)
    ]


def _viewed(sent: torch.Tensor, start: int, array: NDArray[Any]) -> torch.Tensor:
    dtype = _TORCH[array.dtype]
    if not array.size:
        return torch.empty(array.shape, dtype=dtype, device=sent.device)
    return sent[start : start + array.nbytes].view(dtype).view(array.shape)


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where each begins, and the size of all."""
    padded = [-(-size // _ALIGNED) * _ALIGNED for size in sizes]
    ends = np.cumsum(padded)
    return (ends - padded).tolist(), int(ends[-1])


_TORCH = {
    np.dtype(name): getattr(torch, name) for name in ("bool", "uint8", "int32", "int64", "float32", "float64")
}
_NUMPY = {there: here for here, there in _TORCH.items()}
