"""A step's tensors in one piece of memory, which one copy fills. Those of decode steps stay in place, so that
a captured CUDA graph can run them again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import structlog
import torch
from transformers.utils.generic import ModelOutput

from forkdecode.kv.forest_plan import ForestPlan
from forkdecode.model.attention import StepAttention
from forkdecode.model.kv_cache import KvCache
from forkdecode.model.node_plans import Key, Planners, StaticLists, rounded_up
from forkdecode.model.step_shape import StepShape
from forkdecode.step import I64, StepPlan
from forkdecode_kernels.node_list import NodeCapacity, NodeListPart, list_bytes
from forkdecode_kernels.staged import StagedMemory, StagedPart

MAX_GRAPHS = 32
"""Kept at a time; each holds its lists and its output. Activations lie in memory that all share."""
MAX_GRAPH_ROWS = 1024
"""Steps of more rows compute for so long that launches cost nothing."""
_log = structlog.get_logger("forkdecode.model")


class Decoder(Protocol):
    """The model's decoder: see runner.GenericDecoder."""

    def __call__(self, tokens: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> ModelOutput: ...


Forward = tuple[ModelOutput, torch.Tensor, int]
"""The decoder's output, padding included, the step's logits_index on the device, and the bytes that attention
has read: StepOutput.attention_bytes."""
Capture = Callable[[Callable[[], ModelOutput]], tuple[Callable[[], None], ModelOutput]]
"""Runs the work once so that it can be repeated: what repeats it, and the output that it then fills."""


def bucket(rows: int) -> int:
    """Tokens of the step that `rows` rows are padded to: multiples of 16 up to 64, then two a power of two,
    so that at most a third is padding."""
    if rows <= 64:
        return -(-rows // 16) * 16
    power = 1 << (rows - 1).bit_length()
    return 3 * power // 4 if rows <= 3 * power // 4 else power


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
        room: Callable[[NodeCapacity], NodeCapacity] = lambda exact: exact,
    ) -> None:
        capacities = [room(NodeCapacity.of(arrays)) for arrays in planned.values()]
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

    def fill(self, plan: StepPlan, planned: Mapping[Key, ForestPlan]) -> torch.Tensor:
        """Takes a step that fits, by one copy; its logits_index on the device. What is beyond its tokens is
        token 0 at position 0, written nowhere."""
        self._memory.begin()
        n, m = len(plan.token_ids), len(plan.logits_index)
        self._tokens[:2, n:], self._tokens[2, n:] = 0, -1
        self._tokens[:, :n] = np.stack([plan.token_ids, plan.positions, plan.slots])
        self._logits[:m] = plan.logits_index
        self.lists.write(planned)
        self._memory.send()
        return self.logits_index[:m]


def _numbers(part: StagedPart, shape: tuple[int, ...]) -> tuple[I64, torch.Tensor]:
    """Both sides of a part as int64."""
    return part.host.view(torch.int64).view(shape).numpy(), part.device.view(torch.int64).view(shape)


class GraphedDecoder:
    """Runs decode steps by captured graphs: one a padded number of rows and size of the attention's plan.

    The first run of each is compared with the same step run plainly: they must agree bit for bit. If they
    do not, or a capture fails, all further steps run plainly.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KvCache,
        windows: tuple[int | None, ...],
        planners: Planners,
        capture: Capture,
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._windows = windows
        self._planners = planners
        self._capture = capture
        self._steps: list[StaticStep] = []
        self._works = True

    def takes(self, plan: StepPlan) -> bool:
        """Whether a step can be run here."""
        n = len(plan.token_ids)
        return self._works and not plan.segments and len(plan.logits_index) <= n <= MAX_GRAPH_ROWS

    def __call__(self, plan: StepPlan) -> Forward | None:
        """Good until the next call. None: run it plainly, as before any step has shown what kinds of layers
        there are, or where attention runs in slices."""
        size = bucket(len(plan.token_ids))
        planned = self._planners.plan_all(StepShape((), plan.decodes, size))
        if not planned or self._planners.too_large(planned):
            return None
        for step in [s for s in reversed(self._steps) if len(s.tokens) == size]:
            if step.lists.fit(planned):
                self._steps.remove(step)
                self._steps.append(step)  # the one used last is the last
                return self._run(step, plan, planned)
        return self._first(plan, size, planned)

    def _run(self, step: StaticStep, plan: StepPlan, planned: Mapping[Key, ForestPlan]) -> Forward:
        assert step.replay is not None
        assert step.output is not None
        index = step.fill(plan, planned)
        step.replay()
        return step.output, index, step.attention.moved()

    def _first(self, plan: StepPlan, size: int, planned: Mapping[Key, ForestPlan]) -> Forward | None:
        """Captures a step of a new size, and checks that it repeats."""
        sizes = StepSize(size, size, size)
        step = StaticStep(sizes, self._cache, self._windows, planned, rounded_up)
        index = step.fill(plan, planned)

        def work() -> ModelOutput:
            return self._decoder(step.tokens, step.positions, step.attention)

        plain = work()["last_hidden_state"].clone()
        try:
            step.replay, step.output = self._capture(work)
            step.replay()
            same = torch.equal(_bits(step.output["last_hidden_state"]), _bits(plain))
        except RuntimeError as error:
            self._give_up(f"{type(error).__name__}: {error}")
            return None
        if not same:
            self._give_up("a captured step gave another result than the same step run plainly")
            return None
        self._steps = [*self._steps[-MAX_GRAPHS + 1 :], step]
        return step.output, index, step.attention.moved()

    def _give_up(self, reason: str) -> None:
        self._works = False
        self._steps.clear()
        _log.warning("graphs_off", reason=reason)


def _bits(values: torch.Tensor) -> torch.Tensor:
    """By which the NaN of one request's row equals itself."""
    return values.contiguous().view(torch.uint8)
