"""One small copy each way: what an operation wants from the host, and what it tells it.

A copy to a GPU or back costs some ten microseconds however small it is, and one back waits for all work
before it. So an operation packs what it has into one buffer, in page-locked memory, which the GPU reads and
writes by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_ALIGNED = 16
"""Bytes: of every array's beginning on the device. Triton compiles anew for pointers that are not."""


def to_device(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Each array on `device`, by one copy: views of one buffer."""
    parts = [np.ascontiguousarray(a).reshape(a.shape) for a in arrays]
    starts, size = places([a.nbytes for a in parts])
    packed = _host_bytes(size, device)
    there = packed.numpy()
    for a, start in zip(parts, starts, strict=True):
        there[start : start + a.nbytes] = a.reshape(-1).view(np.uint8)
    sent = packed.to(device, non_blocking=True) if size else packed.new_empty(0, device=device)
    return [_viewed(sent, start, a) for a, start in zip(parts, starts, strict=True)]


def to_host(tensors: Sequence[torch.Tensor]) -> list[NDArray[Any]]:
    """Each tensor as an array, by one copy. All are of one device; bool comes as bool."""
    return on_its_way(tensors)()


def on_its_way(tensors: Sequence[torch.Tensor]) -> Callable[[], list[NDArray[Any]]]:
    """Starts to_host's copy; what waits for it, and for no work that comes after it."""
    if not tensors:
        return list
    # The wide ones first: so each begins at a multiple of its elements' size, with nothing between.
    order = sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size())
    flat = [tensors[i].contiguous().view(-1, 1).view(torch.uint8).view(-1) for i in order]
    ends = np.cumsum([len(f) for f in flat])
    kinds = [(tensors[i].dtype, tensors[i].shape) for i in order]
    arrived = _sent(torch.cat(flat))

    def read() -> list[NDArray[Any]]:
        host = arrived()
        found: list[NDArray[Any]] = [host] * len(order)
        for i, (dtype, shape), end in zip(order, kinds, ends, strict=True):
            size = dtype.itemsize * shape.numel()
            found[i] = host[end - size : end].view(_NUMPY[dtype]).reshape(shape)
        return found

    return read


def _sent(packed: torch.Tensor) -> Callable[[], NDArray[Any]]:
    """What waits for the bytes: copied out, so that the page-locked memory can be handed out again."""
    if packed.device.type != "cuda":
        here = np.asarray(packed.cpu().numpy())
        return lambda: here
    host = torch.empty(packed.shape, dtype=torch.uint8, pin_memory=True)
    host.copy_(packed, non_blocking=True)
    done = torch.cuda.current_stream(packed.device).record_event()

    def arrived() -> NDArray[Any]:
        done.synchronize()
        return np.array(host.numpy())

    return arrived


def _host_bytes(size: int, device: torch.device) -> torch.Tensor:
    # torch keeps page-locked memory, and hands it out again when the copy from it is done.
    return torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")


def _viewed(sent: torch.Tensor, start: int, array: NDArray[Any]) -> torch.Tensor:
    dtype = _TORCH[array.dtype]
    if not array.size:
        return torch.empty(array.shape, dtype=dtype, device=sent.device)
    return sent[start : start + array.nbytes].view(dtype).view(array.shape)


def places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where each of so many bytes begins, and the size of all."""
    padded = [-(-size // _ALIGNED) * _ALIGNED for size in sizes]
    ends = np.cumsum(padded, dtype=np.int64)
    return (ends - padded).tolist(), int(ends[-1]) if len(sizes) else 0


_TORCH = {
    np.dtype(name): getattr(torch, name) for name in ("bool", "uint8", "int32", "int64", "float32", "float64")
}
_NUMPY = {there: here for here, there in _TORCH.items()}
