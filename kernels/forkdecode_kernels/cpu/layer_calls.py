"""What a layer's passes between its products are called with: work, its arguments, and on how many threads.

Tensors are contiguous, on the CPU, all float32 or all bfloat16 but for weights and turns. They must be there
until the work is done: arguments hold addresses.
"""

from __future__ import annotations

import torch

from forkdecode_kernels.cpu import layer_work as work
from forkdecode_kernels.cpu.team import Call
from forkdecode_kernels.cpu.words import bits

THREAD_ELEMENTS = 300_000
"""Elements from which all threads take part."""


def norm_call(
    hidden: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    delta_weight: torch.Tensor | None,
    out: torch.Tensor,
) -> Call:
    """See forkdecode_kernels.norm.add_rms_norm."""
    rows, width = hidden.shape
    changes = (0, 0) if delta is None else (delta.data_ptr(), rows)
    own = (0, 0) if delta_weight is None else (delta_weight.data_ptr(), width)
    arguments = (
        0, rows, width, hidden.data_ptr(), *changes, weight.data_ptr(), *own, bits(eps), out.data_ptr(),
    )  # fmt: skip
    return work.norm_work(_half(hidden)), arguments, threads_for(hidden)


def gate_call(gate_up: torch.Tensor, activation: str, out: torch.Tensor) -> Call:
    """See forkdecode_kernels.gated."""
    arguments = (0, len(out), out.shape[1], gate_up.data_ptr(), out.data_ptr())
    return work.gate_work(activation, _half(gate_up)), arguments, threads_for(gate_up)


def rotate_call(
    qkv: torch.Tensor,
    kv: torch.Tensor,
    turns: tuple[torch.Tensor, torch.Tensor],
    slots: torch.Tensor,
    head_weights: tuple[torch.Tensor | None, torch.Tensor | None],
    eps: float,
    query: torch.Tensor,
) -> Call:
    """See forkdecode_kernels.rotary.split_rotate_write; head_weights: both or neither."""
    (heads, rows, dim), (cos, sin) = query.shape, turns
    own = [0 if each is None else each.data_ptr() for each in head_weights]
    arguments = (
        0, rows, heads, kv.shape[1], kv.shape[2] * kv.shape[3], dim, cos.shape[1], qkv.data_ptr(),
        kv.data_ptr(), cos.data_ptr(), sin.data_ptr(), slots.data_ptr(), len(slots), *own,
        dim if own[0] else 0, bits(eps), query.data_ptr(),
    )  # fmt: skip
    return work.rotate_work(_half(qkv)), arguments, threads_for(qkv)


def widen_call(x: torch.Tensor, out: torch.Tensor) -> Call:
    """x bfloat16 -> out, the same numbers as float32."""
    return work.widen_work(), (0, x.numel(), x.data_ptr(), out.data_ptr()), threads_for(x)


def _half(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.bfloat16


def threads_for(tensor: torch.Tensor) -> int:
    """On how many a pass over it runs."""
    return torch.get_num_threads() if tensor.numel() >= THREAD_ELEMENTS else 1
