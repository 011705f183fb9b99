"""The hook into transformers: its attention modules call `paged_attention` with the step's metadata."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from forkdecode.model.hand_over import handed
from forkdecode.model.kv_cache import KvCache
from forkdecode.model.node_plans import Key, LayerCounts, key_of
from forkdecode.model.rows_alone import as_torch_has_it
from forkdecode_kernels.attention import AttentionPlan, attention, plan_attention
from forkdecode_kernels.attention_reads import tokens_read
from forkdecode_kernels.attention_work import AttentionWork
from forkdecode_kernels.cpu.attention import CpuAttentionPlan
from forkdecode_kernels.write_kv import write_kv

ATTENTION_NAME = "forkdecode"


class AttentionPlans(Protocol):
    """Where a step's plans come from."""

    def plan(self, num_heads: int, kv: torch.Tensor, window: int | None) -> AttentionPlan:
        """For layers with num_heads query heads, a cache shaped like `kv` [2, K, B, S, D] and this window."""

    def moved(self, layers: LayerCounts, element_bytes: int) -> int:
        """Bytes that attention of so many layers reads of keys and values by the step's plans, and moves
        besides. element_bytes: of a number of the cache."""


@dataclass(frozen=True, slots=True)
class WorkPlans:
    """Plans from a step's work, for CPUs, and for GPUs whose kernels are off, where attention needs none."""

    work: AttentionWork
    _made: dict[Key, AttentionWork | CpuAttentionPlan] = field(default_factory=dict, init=False)

    def plan(self, num_heads: int, kv: torch.Tensor, window: int | None) -> AttentionPlan:
        """See AttentionPlans."""
        plan = plan_attention(self.work, num_heads=num_heads, kv=kv, window=window)
        self._made[key_of(num_heads, kv, window)] = plan
        return plan

    def moved(self, layers: LayerCounts, element_bytes: int) -> int:
        """See AttentionPlans."""
        return sum([
            layers[key] * 2 * key[1] * key[2] * element_bytes * tokens_read(plan, key[0] // key[1])
            for key, plan in self._made.items()
        ])  # fmt: skip


class StepAttention:
    """One step's attention metadata; plans are made once for all layers of equal shape and window.

    slots [n <= T] int64: where the first n tokens' keys and values go; on a GPU -1 is nowhere.
    """

    def __init__(
        self, cache: KvCache, plans: AttentionPlans, slots: torch.Tensor, windows: tuple[int | None, ...]
    ) -> None:
        self.cache = cache
        self.slots = slots
        self._source = plans
        self._windows = windows
        self._plans: dict[Key, AttentionPlan] = {}
        self._keys: dict[int, Key] = {}

    def plan(self, layer: int, num_heads: int) -> tuple[AttentionPlan, int | None]:
        """The plan of `layer`, and its sliding window."""
        kv, window = self.cache.layer(layer), self._windows[layer]
        key = self._keys[layer] = key_of(num_heads, kv, window)
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = self._source.plan(num_heads, kv, window)
        return found, window

    def moved(self) -> int:
        """Bytes that attention of the layers that have asked for plans reads of keys and values, and moves
        besides: see AttentionPlans."""
        return self._source.moved(Counter(self._keys.values()), self.cache.layer(0).element_size())


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, H, T, D], key [1, K, T, D], value [1, K, T, E] -> [1, T, H, E]: writes K/V, then attends.

    The mask is None: what a token sees follows from the step that is handed over and the layer's window.
    Where D and E differ (multi-head latent attention) the shorter are filled up with zeros: they add nothing.
    """
    step: StepAttention = handed(module)
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    kv, wanted = step.cache.layer(layer), value.shape[3]
    query, key, value = (filled(each, kv.shape[4]) for each in (query, key, value))
    with as_torch_has_it():  # its products are none by weights, and their shapes are their groups' own
        write_kv(kv, key[0], value[0], step.slots)
        plan, window = step.plan(layer, query.shape[1])
        out = attention(query[0], kv, plan, scale=scale, window=window, softcap=softcap, sinks=s_aux)
    return out[None, :, :, :wanted], None


def filled(x: torch.Tensor, size: int) -> torch.Tensor:
    """[..., n] -> [..., size], with zeros after the n; x itself where there are none."""
    missing = size - x.shape[-1]
    return torch.nn.functional.pad(x, (0, missing)) if missing else x


def install() -> None:
    """Makes `paged_attention` known to transformers as attention implementation "forkdecode"."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention)
