"""The model's layers by torch.compile: what lies between two attentions becomes a few fused kernels."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from forkdecode.config import Compile
from forkdecode.errors import invalid
from forkdecode.model.attention import paged_attention

COMPILED_ATTENTION = "forkdecode_beside_compiled"
"""The attention that compiled layers call: as it is, for it has kernels of its own, and each step has other
metadata."""


def check_compile(model: PreTrainedModel, device: torch.device, compiles: Compile) -> None:
    """Raises InvalidRequestError where compiled layers can't be had."""
    if compiles == "none":
        return
    if device.type == "cpu":
        raise invalid("compile", "'layers' is for GPUs", "'none'")
    if not isinstance(getattr(model.base_model, "layers", None), torch.nn.ModuleList):
        raise invalid("compile", f"'layers' does not go with {type(model).__name__}", "'none'")


def compile_layers(model: PreTrainedModel, backend: str = "inductor") -> None:
    """Compiles each decoder layer, once for all numbers of tokens. backend: torch.compile's."""
    AttentionInterface.register(COMPILED_ATTENTION, torch.compiler.disable(paged_attention))  # type: ignore[no-untyped-call]
    model.set_attn_implementation(COMPILED_ATTENTION)
    layers: Any = model.base_model.layers
    for layer in layers:
        layer.compile(backend=backend, dynamic=True)
