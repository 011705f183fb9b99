"""Residual sum and RMS normalisation in one pass over the hidden states."""

from __future__ import annotations

import torch

from forkdecode_kernels.cpu import layer_passes as cpu
from forkdecode_kernels.reference import layers as reference


def add_rms_norm(
    hidden: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    delta_weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """hidden [T, n] += delta [T, n] in place, then -> rms_norm(hidden) * weight [T, n].

    weight [n] float32; with delta_weight [n] float32 the delta is itself normalised first (Gemma 2,
    arXiv 2408.00118, section 2). float32 inside; rounded to hidden's dtype after the sum and at the
    end. Rows are bitwise independent of each other. Raises ValueError on unfit shapes or dtypes.
    """
    if hidden.ndim != 2 or (delta is not None and (delta.shape, delta.dtype) != (hidden.shape, hidden.dtype)):
        raise ValueError(f"hidden {tuple(hidden.shape)} must be [T, n], and delta like it")
    for each in (weight, delta_weight):
        if each is not None and (each.dtype != torch.float32 or each.shape != hidden.shape[1:]):
            raise ValueError(f"weight is {each.dtype} {tuple(each.shape)}; must be float32 [n]")
    if hidden.device.type == "cpu":
        return cpu.add_rms_norm(hidden, delta, weight, eps, delta_weight)
    return reference.add_rms_norm(hidden, delta, weight, eps, delta_weight)
