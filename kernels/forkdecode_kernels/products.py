"""Linear layers' products on a CPU, the weight packed once, in half the bytes where nothing is lost by it."""

from __future__ import annotations

import torch

from forkdecode_kernels.cpu import products as cpu
from forkdecode_kernels.cpu import team
from forkdecode_kernels.cpu.half import DTYPES
from forkdecode_kernels.cpu.products import Panels


def has_team() -> bool:
    """Whether products can run on torch's own threads, which they have to when there are several."""
    return team.available()


def pack_weight(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Panels:
    """weight [N, K], bias [N], float32 or bfloat16 on the CPU -> packed, the bias in float32.

    A weight whose numbers are all bfloat16 numbers is stored as such, in half the bytes, with the same
    results. Raises ValueError on other shapes, dtypes and devices.
    """
    if weight.ndim != 2 or 0 in weight.shape:
        raise ValueError(f"weight is {tuple(weight.shape)}; must be [N, K], at least 1 each")
    if weight.device.type != "cpu":
        raise ValueError(f"weight is on {weight.device}; must be on the CPU")
    if weight.dtype not in DTYPES:
        raise ValueError(f"weight is {weight.dtype}; must be float32 or bfloat16")
    if bias is not None and (bias.shape != weight.shape[:1] or bias.device != weight.device):
        raise ValueError(
            f"bias is {tuple(bias.shape)} on {bias.device}; must be [N = {len(weight)}] beside weight"
        )
    return cpu.pack(weight, bias, _is_half(weight))


def _is_half(weight: torch.Tensor) -> bool:
    """Whether every number is a bfloat16 number."""
    if weight.dtype == torch.bfloat16:
        return True
    # Row by row first: most weights that are not show it at once.
    return torch.equal(weight[0].bfloat16().float(), weight[0]) and torch.equal(
        weight.bfloat16().float(), weight
    )


def product(x: torch.Tensor, panels: Panels) -> torch.Tensor:
    """x [T, K] float32 or bfloat16 on the CPU -> x @ weight.T + bias [T, N] of x's dtype.

    Sums in float32 in the order of K, rounded once: each row is bitwise independent of the others and of
    the number of threads. Raises ValueError on other shapes, dtypes and devices.
    """
    if x.ndim != 2 or x.shape[1] != panels.inputs:
        raise ValueError(f"x is {tuple(x.shape)}; must be [T, K = {panels.inputs}]")
    if x.device.type != "cpu" or x.dtype not in DTYPES:
        raise ValueError(f"x is {x.dtype} on {x.device}; must be float32 or bfloat16 on the CPU")
    return cpu.product(x, panels)
