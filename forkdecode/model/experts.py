"""Mixture-of-experts layers whose result for a token doesn't depend on the tokens beside it.

transformers hands each expert the tokens routed to it, however few, and a matrix product's bits
depend on a small row count. Here each expert's rows are padded, and its weights packed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from forkdecode.model.packing import PackedLinear, can_pack

EXPERTS_NAME = "forkdecode"
_ROW_QUANTUM = 16


def install_experts(model: torch.nn.Module) -> int:
    """Switches the model's expert layers on the CPU to `padded_experts`, in place; returns how many."""
    ALL_EXPERTS_FUNCTIONS.register(EXPERTS_NAME, padded_experts)
    count = 0
    for module in model.modules():
        if _is_experts(module) and _on_cpu(module.down_proj):
            _pack(module)
            count += 1
    return count


@contextmanager
def plain_experts(model: torch.nn.Module) -> Iterator[None]:
    """Within, the model's expert layers run by their own forward: their default, transformers' grouped
    products, refuses sizes that are no multiple of 16 bytes."""
    configs: dict[int, Any] = {id(m.config): m.config for m in model.modules() if _is_experts(m)}
    before = [(config, config._experts_implementation) for config in configs.values()]
    try:
        for config, _ in before:
            config._experts_implementation = "eager"
        yield
    finally:
        for config, implementation in before:
            config._experts_implementation = implementation


def padded_experts(
    module: Any, hidden: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """hidden [T, hidden], top_k_index and top_k_weights [T, k] -> [T, hidden]."""
    tokens, top_k = top_k_index.shape
    expert_of = top_k_index.reshape(-1)
    order = torch.argsort(expert_of, stable=True)
    counts = torch.bincount(expert_of, minlength=len(module.packed_down)).tolist()
    out = hidden.new_empty(tokens * top_k, hidden.shape[1])
    start = 0
    for expert, count in enumerate(counts):
        if count:
            pairs = order[start : start + count]
            rows = hidden.index_select(0, torch.nn.functional.pad(pairs // top_k, (0, -count % _ROW_QUANTUM)))
            out[pairs] = _expert(module, expert, rows)[:count]
            start += count
    weighted = out * top_k_weights.reshape(-1, 1)
    return weighted.view(tokens, top_k, -1).sum(1).to(hidden.dtype)


def _expert(module: Any, expert: int, rows: torch.Tensor) -> torch.Tensor:
    up = module.packed_up[expert](rows)
    gated = module._apply_gate(up) if module.has_gate else module.act_fn(up)
    out: torch.Tensor = module.packed_down[expert](gated)
    # The attribute came after transformers 5.17.
    return module.post_expert_norm(out) if getattr(module, "has_post_expert_norm", False) else out


def _is_experts(module: torch.nn.Module) -> bool:
    """Whether transformers dispatches this module's forward by `_experts_implementation`."""
    known = all(hasattr(module, name) for name in ("_apply_gate", "is_transposed", "has_gate", "has_bias"))
    return known and isinstance(getattr(module, "down_proj", None), torch.nn.Parameter)


def _on_cpu(weight: Any) -> bool:
    return can_pack(weight.dtype) and weight.device.type == "cpu"


def _pack(module: Any) -> None:
    up = "gate_up_proj" if module.has_gate else "up_proj"
    for name, packed_name in ((up, "packed_up"), ("down_proj", "packed_down")):
        weights = getattr(module, name)
        biases = getattr(module, f"{name}_bias") if module.has_bias else [None] * len(weights)
        packed = [
            PackedLinear(w.t() if module.is_transposed else w, b)
            for w, b in zip(weights, biases, strict=True)
        ]
        delattr(module, name)
        setattr(module, packed_name, torch.nn.ModuleList(packed))
    module.config._experts_implementation = EXPERTS_NAME
