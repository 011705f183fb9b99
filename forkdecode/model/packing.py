"""Linear layers with weights repacked once for oneDNN.

Faster for few rows, and the sum over a row's inputs is never split over threads, which MKL does at
some row counts: a row's product has the same bits whatever rows are beside it.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from transformers.pytorch_utils import Conv1D

from forkdecode.model.int8 import Int8Linear

_ROWS_HINT = 64


class PackedLinear(torch.nn.Module):
    """x [..., in] -> [..., out], as torch.nn.Linear. Holds the packed weight only."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROWS_HINT)
        self._bias = None if bias is None else bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return out


Linear: TypeAlias = PackedLinear | Int8Linear


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch has the packed product for CPUs and this dtype."""
    if not torch._C._has_mkldnn or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32


def pack_linears(model: torch.nn.Module, linear: type[Linear] = PackedLinear) -> int:
    """Replaces the model's linear layers on the CPU in place, by `linear` of their weights and biases;
    returns how many. Others stay as they are."""
    packed = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            replacement = _packed(child, linear)
            if replacement is not None:
                setattr(parent, name, replacement)
                packed += 1
    return packed


def _packed(module: torch.nn.Module, linear: type[Linear]) -> Linear | None:
    if type(module) not in (torch.nn.Linear, Conv1D):
        return None
    weight = module.weight
    if not isinstance(weight, torch.Tensor) or weight.device.type != "cpu" or not can_pack(weight.dtype):
        return None
    bias = module.bias if isinstance(module.bias, torch.Tensor) else None
    return linear(weight.t() if isinstance(module, Conv1D) else weight, bias)
