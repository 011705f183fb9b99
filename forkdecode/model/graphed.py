"""Runs steps by captured CUDA graphs: which sizes there are, when one is captured, and when none is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from transformers.utils.generic import ModelOutput

from forkdecode.kv.forest_plan import ForestPlan
from forkdecode.logs import get_logger
from forkdecode.model.device import give_back, lacks_memory
from forkdecode.model.gpu_kernels import FLOAT32, LAST_PLACES
from forkdecode.model.kv_cache import KvCache
from forkdecode.model.node_plans import Key, Planners
from forkdecode.model.static_step import Decoder, Forward, StaticStep, StepSize
from forkdecode.model.step_shape import StepShape
from forkdecode.step import StepPlan

MAX_GRAPHS = 96
"""Kept at a time; each holds its lists and its output. Activations lie in memory that all share."""
MAX_GRAPH_TOKENS = 1024
"""Steps of more tokens compute for so long that launches cost little."""
FIRST_REST, LONGEST_REST = 16, 4096
"""Steps that run plainly after a capture for which there was no memory: twice as many each time."""
_log = get_logger(__name__)

Capture = Callable[[Callable[[], ModelOutput]], tuple[Callable[[], None], ModelOutput]]
"""Runs the work once so that it can be repeated: what repeats it, and the output that it then fills."""


def bucket(tokens: int) -> int:
    """What the step's tokens are padded to: multiples of 16 up to 64, then two a power of two, from 256 on
    four, so that at most a third is padding, and a fifth where it costs more than launches do."""
    if tokens <= 64:
        return -(-tokens // 16) * 16
    power = 1 << (tokens - 1).bit_length()
    step = power // 4 if power <= 256 else power // 8
    return -(-tokens // step) * step


def sizes(most: int) -> list[int]:
    """Those of steps of up to `most` tokens, the largest first."""
    return sorted({bucket(n) for n in range(1, min(most, MAX_GRAPH_TOKENS) + 1)}, reverse=True)


class GraphedDecoder:
    """Runs steps by captured graphs: one a padded number of tokens and size of the attention's plan.

    The first run of each is compared with the same step run plainly. If they differ by more than the last
    bits, or a capture fails, all further steps run plainly; if it was memory that a capture lacked, the
    graphs there are make room, and others are captured later.
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
        self._differed = False
        self._rest, self._next_rest = 0, FIRST_REST

    def takes(self, plan: StepPlan) -> bool:
        """Whether a step can be run here."""
        n = len(plan.token_ids)
        return self._works and len(plan.logits_index) <= n <= MAX_GRAPH_TOKENS

    def __call__(self, plan: StepPlan, drawn: torch.Tensor | None = None) -> Forward | None:
        """Good until the next call. None: run it plainly, as before any step has shown what kinds of layers
        there are, where attention runs in slices, or while there is no memory for graphs. drawn: what
        plan.token_source names rows of."""
        size = bucket(len(plan.token_ids))
        planned = self._planned(plan, size)
        if not planned or self._planners.too_large(planned):
            return None
        for step in [s for s in reversed(self._steps) if len(s.tokens) == size]:
            if step.lists.fit(planned):
                self._steps.remove(step)
                self._steps.append(step)  # the one used last is the last
                return self._run(step, plan, planned, drawn)
        if self._rest:
            self._rest -= 1
            return None
        return self._first(plan, size, planned, drawn)

    def warm_up(self, pairs: Iterable[tuple[StepPlan, StepPlan]]) -> None:
        """Captures the first of each pair and runs the second, of equal shape with other tokens, by its
        graph: a graph that keeps something of the step that it was captured with is found out."""
        for captured, other in pairs:
            if not self.takes(captured) or self(captured) is None:
                continue
            found = self(other)
            if found is not None and not self._same(found[0], self._plainly(other)):
                self._give_up("a captured step gave another step's result")

    def make_room(self) -> None:
        """Drops all graphs, and with them the memory of their activations; for a while none is captured."""
        self._steps.clear()
        _log.warning("graphs_dropped", reason="no memory on the GPU", steps=self._next_rest)
        self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, LONGEST_REST)

    def _planned(self, plan: StepPlan, size: int) -> dict[Key, ForestPlan]:
        return self._planners.plan_all(StepShape(plan.segments, plan.decodes, size))

    def _run(
        self,
        step: StaticStep,
        plan: StepPlan,
        planned: Mapping[Key, ForestPlan],
        drawn: torch.Tensor | None,
    ) -> Forward:
        assert step.replay is not None
        assert step.output is not None
        index = step.fill(plan, planned, drawn)
        step.replay()
        return step.output, index, step.attention.moved()

    def _plainly(self, plan: StepPlan) -> ModelOutput:
        size = bucket(len(plan.token_ids))
        planned = self._planned(plan, size)
        step = StaticStep(StepSize(size, size, size), self._cache, self._windows, planned)
        step.fill(plan, planned)
        return self._decoder(step.tokens, step.positions, step.attention)

    def _first(
        self, plan: StepPlan, size: int, planned: Mapping[Key, ForestPlan], drawn: torch.Tensor | None
    ) -> Forward | None:
        """Captures a step of a new size."""
        try:
            return self._captured(plan, size, planned, drawn)
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
        # Not before, for what is raised holds the step's tensors.
        self.make_room()
        give_back()
        return None

    def _captured(
        self, plan: StepPlan, size: int, planned: Mapping[Key, ForestPlan], drawn: torch.Tensor | None
    ) -> Forward | None:
        """Captures a step, and checks that it repeats. Raises what the decoder raises when run plainly, and
        what a capture raises for want of memory."""
        step = StaticStep(
            StepSize(size, size, size), self._cache, self._windows, planned, self._planners.room
        )
        index = step.fill(plan, planned, drawn)

        def work() -> ModelOutput:
            return self._decoder(step.tokens, step.positions, step.attention)

        plain = work()
        plain = type(plain)(last_hidden_state=plain["last_hidden_state"].clone())
        try:
            step.replay, step.output = self._capture(work)
            step.replay()
            same = self._same(step.output, plain)
        except RuntimeError as error:
            if lacks_memory(error):
                raise
            self._give_up(f"{type(error).__name__}: {error}")
            return None
        if not same:
            self._give_up("a captured step gave another result than the same step run plainly")
            return None
        self._steps = [*self._steps[-MAX_GRAPHS + 1 :], step]
        return step.output, index, step.attention.moved()

    def _same(self, ours: ModelOutput, plain: ModelOutput) -> bool:
        """Whether a graph gives what the same step gives run plainly, but for the last bits: a library may
        choose another kernel while it is captured."""
        one, other = ours["last_hidden_state"], plain["last_hidden_state"]
        if torch.equal(_bits(one), _bits(other)):
            return True
        share, largest = _difference(one.float(), other.float())
        if not share <= largest * LAST_PLACES.get(other.dtype, FLOAT32):  # NaN neither
            return False
        if not self._differed:
            _log.info("graphs_differ_in_last_bits", difference=share, largest=largest)
        self._differed = True
        return True

    def _give_up(self, reason: str) -> None:
        self._works = False
        self._steps.clear()
        _log.warning("graphs_off", reason=reason)


def _difference(one: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """The largest difference, NaN where one alone is NaN, and the largest number. The NaN of one request's
    row equals itself."""
    both = ~(one.isnan() & other.isnan())
    apart = torch.where(both & (one != other), (one - other).abs(), 0.0)
    return float(apart.max()), float(torch.where(other.isfinite(), other.abs(), 0.0).max())


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.uint8)
