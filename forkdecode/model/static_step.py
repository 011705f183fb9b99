"""A step's tensors in one piece of memory, which one copy fills. Some stay in place, so that a captured CUDA
graph can run them again and again: see graphed.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from transformers.utils.generic import ModelOutput

from forkdecode.kv.forest_plan import ForestPlan
from forkdecode.model.attention import StepAttention
from forkdecode.model.kv_cache import KvCache
from forkdecode.model.node_plans import Key, StaticLists
from forkdecode.step import I64, StepPlan
from forkdecode_kernels.node_list import NodeCapacity, NodeListPart, list_bytes
from forkdecode_kernels.staged import StagedMemory, StagedPart


class Decoder(Protocol):
    """The model's decoder: see generic.GenericDecoder."""

    def __call__(self, tokens: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> ModelOutput: ...


Forward = tuple[ModelOutput, torch.Tensor, int]
"""The decoder's output, padding included, the step's logits_index on the device, and the bytes that attention
has read: StepOutput.attention_bytes."""


@dataclass(frozen=True, slots=True)
class StepSize:
    """tokens: padding included. slots: how many of them have one, -1 perhaps. logits: entries of logits_index
    at most."""

    tokens: int
    slots: int
    logits: int


class StaticStep:
    """The tensors of steps of one size, and what runs them. planned: lists that there is room for; room: how
    much, where it is for other lists too."""

    def __init__(
        self,
        size: StepSize,
        cache: KvCache,
        windows: tuple[int | None, ...],
        planned: Mapping[Key, ForestPlan],
        room: Callable[[Key, ForestPlan], NodeCapacity] = lambda key, plan: NodeCapacity.of(plan),
    ) -> None:
        capacities = [room(key, plan) for key, plan in planned.items()]
        sizes = [24 * size.tokens, 8 * size.logits, *map(list_bytes, capacities)]
        self._memory = StagedMemory(sizes, cache.layer(0).device)
        tokens, logits, *lists = self._memory.parts
        self._tokens, (self.tokens, self.positions, slots) = _numbers(tokens, (3, size.tokens))
        self._logits, self.logits_index = _numbers(logits, (size.logits,))
        self.lists = StaticLists(
            {
                key: NodeListPart(capacity, part, causal=arrays.causal)
                for (key, arrays), capacity, part in zip(planned.items(), capacities, lists, strict=True)
            }
        )
        self.attention = StepAttention(cache, self.lists, slots[: size.slots], windows)
        self.replay: Callable[[], None] | None = None
        self.output: ModelOutput | None = None

    def fill(
        self, plan: StepPlan, planned: Mapping[Key, ForestPlan], drawn: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Takes a step that fits, by one copy; its logits_index on the device. What is beyond its tokens is
        token 0 at position 0, written nowhere. drawn: what plan.token_source names rows of."""
        self._memory.begin()
        n, m = len(plan.token_ids), len(plan.logits_index)
        self._tokens[:2, n:], self._tokens[2, n:] = 0, -1
        tokens = plan.token_ids if plan.token_source is None else plan.token_source
        self._tokens[:, :n] = np.stack([tokens, plan.positions, plan.slots])
        self._logits[:m] = plan.logits_index
        self.lists.write(planned)
        self._memory.send()
        if drawn is not None:
            self.tokens[:n] = drawn[self.tokens[:n]]
        return self.logits_index[:m]


def _numbers(part: StagedPart, shape: tuple[int, ...]) -> tuple[I64, torch.Tensor]:
    """Both sides of a part as int64."""
    return part.host.view(torch.int64).view(shape).numpy(), part.device.view(torch.int64).view(shape)
