"""What stands between a decoder layer's matrix products, in plain torch: the specification."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., n] float32 -> x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, arXiv 1910.07467)."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def add_rms_norm(
    hidden: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    delta_weight: torch.Tensor | None,
) -> torch.Tensor:
    """See forkdecode_kernels.norm."""
    if delta is not None:
        change = delta.float()
        if delta_weight is not None:
            change = rms_norm(change, delta_weight, eps)
        hidden.copy_(hidden.float() + change)
    return rms_norm(hidden.float(), weight, eps).to(hidden.dtype)


def gated(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """See forkdecode_kernels.gated."""
    gate, up = gate_up.float().chunk(2, -1)
    functional = torch.nn.functional
    active = functional.silu(gate) if activation == "silu" else functional.gelu(gate, approximate="tanh")
    return (active * up).to(gate_up.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, heads, D] float32; its first 2 * half dimensions turned in pairs (i, i + half)."""
    half = cos.shape[1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    c, s = cos[:, None], sin[:, None]
    return torch.cat([first * c - second * s, second * c + first * s, rest], -1)


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
    kv_heads, dim, count = kv.shape[1], kv.shape[4], len(slots)
    joint = qkv.view(len(qkv), -1, dim)
    query, key, value = joint[:, : -2 * kv_heads], joint[:, -2 * kv_heads : -kv_heads], joint[:, -kv_heads:]
    turned = []
    for x, weight in ((query.float(), query_weight), (key.float(), key_weight)):
        turned.append(rotate(x if weight is None else rms_norm(x, weight, eps), cos, sin).to(qkv.dtype))
    flat = kv.flatten(2, 3)
    flat[0].index_copy_(1, slots, turned[1][:count].transpose(0, 1))
    flat[1].index_copy_(1, slots, value[:count].transpose(0, 1))
    return turned[0].transpose(0, 1).contiguous()
