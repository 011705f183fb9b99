"""Decode steps whose tensors stay in place, so that a captured CUDA graph can run them again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import structlog
import torch
from transformers.utils.generic import ModelOutput

from forkdecode.model.attention import StepAttention
from forkdecode.model.kv_cache import KvCache
from forkdecode.model.node_plans import NodeBuffers, Planners, StepShape
from forkdecode.step import StepPlan

MAX_GRAPHS = 32
"""Kept at a time; each holds the activations of its step."""
MAX_GRAPH_ROWS = 1024
"""Steps of more rows compute for so long that launches cost nothing."""
_log = structlog.get_logger("forkdecode.model")


class Decoder(Protocol):
    """The model's decoder: see runner.GenericDecoder."""

    def __call__(self, tokens: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> ModelOutput: ...


Capture = Callable[[Callable[[], ModelOutput]], tuple[Callable[[], None], ModelOutput]]
"""Runs the work once so that it can be repeated: what repeats it, and the output that it then fills."""


def bucket(rows: int) -> int:
    """Tokens of the step that `rows` rows are padded to: multiples of 16 up to 64, then two a power of two,
    so that at most a third is padding."""
    if rows <= 64:
        return -(-rows // 16) * 16
    power = 1 << (rows - 1).bit_length()
    return 3 * power // 4 if rows <= 3 * power // 4 else power


class StaticStep:
    """The tensors of decode steps of one padded size, and what runs them."""

    def __init__(
        self, num_tokens: int, cache: KvCache, windows: tuple[int | None, ...], buffers: NodeBuffers
    ) -> None:
        device = cache.layer(0).device
        self._host = torch.empty((3, num_tokens), dtype=torch.int64, pin_memory=device.type == "cuda")
        self._device = self._host if device.type == "cpu" else torch.empty_like(self._host, device=device)
        on_gpu = device.type == "cuda"
        self._copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self.tokens, self.positions, slots = self._device.unbind(0)
        self.buffers = buffers
        self.attention = StepAttention(cache, buffers, slots, windows)
        self.replay: Callable[[], None] | None = None
        self.output: ModelOutput | None = None

    def fill(self, plan: StepPlan) -> None:
        """Takes the step's tokens. What is beyond them is token 0 at position 0, written nowhere."""
        if self._copied is not None:
            self._copied.synchronize()
        host = self._host.numpy()
        n = len(plan.token_ids)
        host[:2, n:], host[2, n:] = 0, -1
        host[:, :n] = np.stack([plan.token_ids, plan.positions, plan.slots])
        if self._device is not self._host:
            self._device.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


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
        return self._works and not plan.segments and len(plan.token_ids) <= MAX_GRAPH_ROWS

    def __call__(self, plan: StepPlan) -> ModelOutput | None:
        """The decoder's output, padding included; good until the next call. None: run it plainly."""
        size = bucket(len(plan.token_ids))
        shape = StepShape((), plan.decodes, size)
        for step in [s for s in reversed(self._steps) if len(s.tokens) == size]:
            if step.buffers.fill(lambda kind, width: self._planners.plan(kind, width, shape)):
                self._steps.remove(step)
                self._steps.append(step)  # the one used last is the last
                return self._run(step, plan)
        return self._first(plan, size, shape)

    def _run(self, step: StaticStep, plan: StepPlan) -> ModelOutput:
        assert step.replay is not None
        assert step.output is not None
        step.fill(plan)
        step.replay()
        return step.output

    def _first(self, plan: StepPlan, size: int, shape: StepShape) -> ModelOutput | None:
        """Captures a step of a new size, and checks that it repeats."""
        device = self._cache.layer(0).device
        buffers = NodeBuffers(lambda kind, width: self._planners.plan(kind, width, shape), device)
        step = StaticStep(size, self._cache, self._windows, buffers)
        step.fill(plan)

        def work() -> ModelOutput:
            return self._decoder(step.tokens, step.positions, step.attention)

        plain = work()["last_hidden_state"].clone()
        try:
            step.replay, step.output = self._capture(work)
            step.replay()
            same = torch.equal(step.output["last_hidden_state"], plain)
        except RuntimeError as error:
            self._give_up(f"{type(error).__name__}: {error}")
            return None
        if not same:
            self._give_up("a captured step gave another result than the same step run plainly")
            return None
        self._steps = [*self._steps[-MAX_GRAPHS + 1 :], step]
        return step.output

    def _give_up(self, reason: str) -> None:
        self._works = False
        self._steps.clear()
        _log.warning("graphs_off", reason=reason)


def capture_graph(work: Callable[[], ModelOutput]) -> tuple[Callable[[], None], ModelOutput]:
    """A Capture by CUDA graphs. `work` has run before, so that its kernels are compiled."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = work()
    return graph.replay, output
