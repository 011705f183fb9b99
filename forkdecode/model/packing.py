"""Linear layers with weights repacked once, whose sum over a row's inputs is never split over threads, as
MKL does at some row counts: a row's product has the same bits whatever rows are beside it.

With forkdecode_kernels.products that holds from one row on. oneDNN takes what that doesn't: float16,
bfloat16 on CPUs that have instructions for it, and systems without a team of OpenMP threads to share
with torch; there it holds from 16 rows on, but not for bfloat16 by such instructions, whose sums oneDNN
orders by the number of rows.
"""

from __future__ import annotations

import inspect
import platform
import re
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, TypeAlias

import torch
from transformers.pytorch_utils import Conv1D

from forkdecode.model.int8 import Int8Linear
from forkdecode.model.weight_facts import WeightFacts
from forkdecode_kernels.cpu.products import Panels
from forkdecode_kernels.products import has_team, pack_weight, product

ROW_QUANTUM = 16
"""Rows come in multiples of this where products are oneDNN's, or vectorised loops of torch follow."""
_ROWS_HINT = 64
_Product: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


class PackedLinear(torch.nn.Module):
    """x [..., in] -> [..., out], as torch.nn.Linear. Holds the packed weight only; weight: its facts.

    panels: as forkdecode_kernels.products packs it, None where the product is oneDNN's.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight = WeightFacts.of(weight)
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        self.panels = pack_weight(weight, bias) if rows_stand_alone(weight.dtype) else None
        self._product = _one_dnn(weight, bias) if self.panels is None else _ours(self.panels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x)


Linear: TypeAlias = PackedLinear | Int8Linear


def _ours(panels: Panels) -> _Product:
    def call(x: torch.Tensor) -> torch.Tensor:
        if x.ndim == 2:
            return product(x, panels)
        return product(x.reshape(-1, x.shape[-1]), panels).view(*x.shape[:-1], panels.outputs)

    return call


def _one_dnn(weight: torch.Tensor, bias: torch.Tensor | None) -> _Product:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)

    def call(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
        return out

    return call


def rows_stand_alone(dtype: torch.dtype) -> bool:
    """Whether a PackedLinear gives a row the same bits even when it is alone; else there must be 16."""
    if dtype == torch.bfloat16:
        return has_team() and not multiplies_bfloat16()
    return dtype == torch.float32 and has_team()


@cache
def multiplies_bfloat16() -> bool:
    """Whether oneDNN has instructions for bfloat16 on this CPU; on x86 it also claims to where it widens."""
    if platform.machine() in ("x86_64", "AMD64"):
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return _one_dnn_takes(torch.bfloat16)


def can_pack(dtype: torch.dtype) -> bool:
    """Whether there is a packed product for CPUs and this dtype."""
    return rows_stand_alone(dtype) or _one_dnn_takes(dtype)


def _one_dnn_takes(dtype: torch.dtype) -> bool:
    if not torch._C._has_mkldnn or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32


def pack_linears(model: torch.nn.Module, linear: type[Linear] = PackedLinear) -> int:
    """Replaces the model's linear layers on the CPU in place, by `linear` of their weights and biases;
    returns how many. Others stay as they are, and so do those whose weight the module around them takes to
    multiply by it itself."""
    packed = 0
    for parent in list(model.modules()):
        taken = _weights_taken(type(parent).forward)
        for name, child in list(parent.named_children()):
            replacement = None if name in taken else _packed(child, linear)
            if replacement is not None:
                setattr(parent, name, replacement)
                packed += 1
    return packed


@cache
def _weights_taken(forward: Callable[..., Any]) -> frozenset[str]:
    """Children whose weight, and not only its facts, stands in the source of a module's forward."""
    try:
        source = inspect.getsource(forward)
    except (OSError, TypeError):  # made by hand, without a source
        return frozenset()
    facts = "|".join(field.name for field in fields(WeightFacts))
    return frozenset(re.findall(rf"\bself\.(\w+)\.weight\b(?!\.(?:{facts})\b)", source))


def _packed(module: torch.nn.Module, linear: type[Linear]) -> Linear | None:
    if type(module) not in (torch.nn.Linear, Conv1D):
        return None
    weight = module.weight
    if not isinstance(weight, torch.Tensor) or weight.device.type != "cpu" or not can_pack(weight.dtype):
        return None
    if not weight.numel():  # a mixture without shared experts has one of no size
        return None
    bias = module.bias if isinstance(module.bias, torch.Tensor) else None
    return linear(weight.t() if isinstance(module, Conv1D) else weight, bias)
