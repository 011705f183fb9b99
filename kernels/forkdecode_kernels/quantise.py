"""Rows as 8-bit codes with a scale of their own: symmetric dynamic quantisation of activations."""

from __future__ import annotations

import torch

from forkdecode_kernels.cpu import quantise as cpu
from forkdecode_kernels.reference import quantise as reference

ZERO = 128
"""The code of 0."""


def quantise_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, n] float32 or bfloat16 -> codes [T, n] uint8, scale [T] float32: x is (codes - ZERO) * scale.

    scale is the row's largest absolute value / 127, and 0 where that is below 1e-30; a row that is not
    finite has the scale NaN. Rows are bitwise independent of each other. Raises ValueError on unfit shapes.
    """
    if x.ndim != 2:
        raise ValueError(f"x is {tuple(x.shape)}; must be [T, n]")
    return cpu.quantise_rows(x) if x.device.type == "cpu" else reference.quantise_rows(x)
