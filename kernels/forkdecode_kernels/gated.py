"""The gate of a gated linear unit (Shazeer, arXiv 2002.05202)."""

from __future__ import annotations

import torch

from forkdecode_kernels.cpu import layer_passes as cpu
from forkdecode_kernels.reference import layers as reference

ACTIVATIONS = ("silu", "gelu_tanh")


def gated(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """gate_up [T, 2 * I], gates first -> activation(gate) * up [T, I], float32 inside.

    activation: "silu" or "gelu_tanh". Raises ValueError on others and on unfit shapes.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}; must be one of {', '.join(ACTIVATIONS)}")
    if gate_up.ndim != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up is {tuple(gate_up.shape)}; must be [T, 2 * I]")
    if gate_up.device.type == "cpu":
        return cpu.gated(gate_up, activation)
    return reference.gated(gate_up, activation)
