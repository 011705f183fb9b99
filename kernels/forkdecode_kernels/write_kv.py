"""Writes new keys and values into their slots."""

from __future__ import annotations

import torch


def write_kv(kv: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    """kv [2, K, B, S, D] takes the first n tokens of key and value [K, T, D] at slots [n] int64.

    The T - n tokens after them are padding and are written nowhere, and so are tokens of slot -1, so
    that a captured graph can hold more tokens than a step has. The other slots must differ.
    Raises ValueError on unfit shapes or dtypes.
    """
    heads, dim = kv.shape[1], kv.shape[4]
    count = slots.shape[0]
    if key.shape != value.shape or key.ndim != 3 or (key.shape[0], key.shape[2]) != (heads, dim):
        raise ValueError(f"key {tuple(key.shape)}, value {tuple(value.shape)}; must be [{heads}, T, {dim}]")
    if slots.ndim != 1 or slots.dtype != torch.int64 or count > key.shape[1]:
        raise ValueError(f"slots is {slots.dtype} {tuple(slots.shape)}; must be int64 [n <= {key.shape[1]}]")
    if key.dtype != kv.dtype or value.dtype != kv.dtype:
        raise ValueError(f"key {key.dtype}, value {value.dtype}; must be {kv.dtype}")
    if kv.is_cuda:
        from forkdecode_kernels.triton import write_kv as fast

        fast.write_kv(kv, key, value, slots)
        return
    key, value = key[:, :count], value[:, :count]
    written = slots >= 0
    if not bool(written.all()):
        key, value, slots = key[:, written], value[:, written], slots[written]
    flat = kv.flatten(2, 3)
    flat[0].index_copy_(1, slots, key)
    flat[1].index_copy_(1, slots, value)
