"""The steps between a layer's matrix products, each one compiled pass; rows never see each other."""

from __future__ import annotations

import torch

from forkdecode_kernels.cpu.half import DTYPES
from forkdecode_kernels.cpu.layer_calls import gate_call, norm_call, rotate_call
from forkdecode_kernels.cpu.team import run_call


def add_rms_norm(
    hidden: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    delta_weight: torch.Tensor | None,
) -> torch.Tensor:
    """See forkdecode_kernels.norm."""
    check_stored(hidden)
    whole, out, scale = (
        hidden.contiguous(),
        torch.empty(hidden.shape, dtype=hidden.dtype),
        weight.contiguous(),
    )
    change, own = _whole(delta), _whole(delta_weight)
    run_call(norm_call(whole, change, scale, eps, own, out))
    if whole is not hidden:
        hidden.copy_(whole)
    return out


def gated(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """See forkdecode_kernels.gated."""
    check_stored(gate_up)
    both, out = gate_up.contiguous(), gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
    run_call(gate_call(both, activation, out))
    return out


def split_rotate_write(
    qkv: torch.Tensor,
    kv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """See forkdecode_kernels.rotary."""
    check_stored(qkv)
    dim = kv.shape[4]
    query = qkv.new_empty(qkv.shape[1] // dim - 2 * kv.shape[1], len(qkv), dim)
    joint, turns, places = qkv.contiguous(), (cos.contiguous(), sin.contiguous()), slots.contiguous()
    own = _whole(query_weight), _whole(key_weight)
    run_call(rotate_call(joint, kv, turns, places, own, eps, query))
    return query


def check_stored(tensor: torch.Tensor) -> None:
    """Raises TypeError for what kernels don't take."""
    if tensor.dtype not in DTYPES:
        raise TypeError(f"dtype is {tensor.dtype}; must be float32 or bfloat16")


def _whole(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.contiguous()
