"""From the joint query-key-value product to turned queries, and keys and values in their slots."""

from __future__ import annotations

import torch

from forkdecode_kernels.cpu import layer_passes as cpu
from forkdecode_kernels.reference import layers as reference


def split_rotate_write(
    qkv: torch.Tensor,
    kv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    query_weight: torch.Tensor | None = None,
    key_weight: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """qkv [T, (H + 2 K) * D] -> queries [H, T, D]; keys and values of the first n tokens go into kv.

    kv [2, K, B, S, D] contiguous, on the CPU or a GPU; slots [n] int64, block * S + offset, all different;
    the T - n tokens after them are padding. cos, sin [T, half] float32 turn the pairs (i, i + half)
    (Su et al., arXiv 2104.09864, in the halved layout); dimensions from 2 * half on stay. With
    query_weight and key_weight [D] float32 each head is first normalised (rms, eps). float32 inside.
    Raises ValueError on unfit shapes or dtypes.
    """
    kv_heads, dim = kv.shape[1], kv.shape[4]
    if qkv.ndim != 2 or qkv.shape[1] % dim or qkv.shape[1] <= 2 * kv_heads * dim or qkv.dtype != kv.dtype:
        raise ValueError(f"qkv {qkv.dtype} {tuple(qkv.shape)} does not fit kv {kv.dtype} {tuple(kv.shape)}")
    if cos.shape != sin.shape or cos.shape[0] != len(qkv) or 2 * cos.shape[1] > dim:
        raise ValueError(f"cos {tuple(cos.shape)}, sin {tuple(sin.shape)}; must be [T, at most D / 2]")
    if cos.dtype != torch.float32 or sin.dtype != torch.float32:
        raise ValueError(f"cos is {cos.dtype}, sin {sin.dtype}; must be float32")
    if slots.ndim != 1 or slots.dtype != torch.int64 or len(slots) > len(qkv):
        raise ValueError(f"slots is {slots.dtype} {tuple(slots.shape)}; must be int64 [n <= T]")
    if not kv.is_contiguous():
        raise ValueError("kv is not contiguous; it is written where it lies")
    if (query_weight is None) != (key_weight is None):
        raise ValueError("query_weight and key_weight: one is there and one missing; must be both or neither")
    for weight in (query_weight, key_weight):
        if weight is not None and (weight.dtype != torch.float32 or weight.shape != (dim,)):
            raise ValueError(f"weight is {weight.dtype} {tuple(weight.shape)}; must be float32 [D = {dim}]")
    if qkv.device.type == "cpu":
        return cpu.split_rotate_write(qkv, kv, cos, sin, slots, query_weight, key_weight, eps)
    return reference.split_rotate_write(qkv, kv, cos, sin, slots, query_weight, key_weight, eps)
