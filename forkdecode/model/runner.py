"""Runs a step on the model: block moves, forward pass, logits, selections."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from transformers import PreTrainedModel

from forkdecode.kv.forest_plan import ForestPlan
from forkdecode.model.attention import AttentionPlans, StepAttention, WorkPlans
from forkdecode.model.device import check_answers, current, give_back, lacks_memory
from forkdecode.model.gpu_kernels import check_moves, host_reached, kernels_fit
from forkdecode.model.graph_capture import GraphCapture
from forkdecode.model.graphed import GraphedDecoder
from forkdecode.model.info import ModelInfo
from forkdecode.model.kv_cache import KvCache
from forkdecode.model.node_plans import Key, NodePlans, Planners
from forkdecode.model.prepared import PreparedModel
from forkdecode.model.runner_settings import RunnerSettings
from forkdecode.model.selecting import selected
from forkdecode.model.static_step import Forward, StaticStep, StepSize
from forkdecode.model.step_shape import StepShape
from forkdecode.model.timed import timed
from forkdecode.model.warm_up import capture, first_steps
from forkdecode.step import I64, SelectionResult, StepOutput, StepPlan
from forkdecode_kernels import forest
from forkdecode_kernels.attention_work import make_work


class Runner:
    """Executes step plans. Owns the model and the KV cache's memory; one thread calls it at a time.

    The model is prepared in place, and belongs to the runner from then on: on a CPU its weights are
    repacked. Raises InvalidRequestError where a setting can't be had.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        info: ModelInfo,
        settings: RunnerSettings,
        num_blocks: int,
        num_host_slots: int,
    ) -> None:
        self.device = settings.device
        prepare = settings.preparing
        prepare.check(model)
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        self._take(prepare(model, info.vocab_size))
        self._info = info
        self._windows = info.windows
        block_size, invariant = settings.block_size, settings.batch_invariant
        self.cache = KvCache(info, block_size, num_blocks, num_host_slots, settings.dtype, self.device)
        self._planners: Planners | None = None
        on_gpu = self.device.type == "cuda"
        if settings.attention == "nodes" or (
            on_gpu and kernels_fit(model, self.cache, info.windows, invariant)
        ):
            self._planners = Planners(block_size, self.device, batch_invariant=invariant)
        self._graphed = self._graphs()
        self._drawn: torch.Tensor | None = None

    def resize(self, num_blocks: int, num_host_slots: int) -> None:
        """Takes another cache, which is empty, in place of the one there is. Raises CapacityError."""
        info, dtype = self._info, self.cache.layer(0).dtype
        self.cache = KvCache(info, self.cache.block_size, num_blocks, num_host_slots, dtype, self.device)
        self._graphed = self._graphs()

    def replace(self, model: PreparedModel) -> None:
        """Computes with another model from now on, whose keys, values, windows and vocabulary have the sizes
        of this one's. The cache's memory stays; graphs are captured anew as steps come. Where the model's
        first step raises, its error comes through and all stays as it was."""
        before = PreparedModel(self._decoder, self._head, self._row_quantum)
        self._take(model)
        try:
            with current(self.device):
                self._warm_steps()
        except BaseException:
            self._take(before)
            raise
        self._graphed = self._graphs()

    def _take(self, model: PreparedModel) -> None:
        self._decoder, self._head, self._row_quantum = model.decoder, model.head, model.row_quantum

    def _graphs(self) -> GraphedDecoder | None:
        if self._planners is None or self.device.type != "cuda":
            return None
        capture = GraphCapture(self.device)
        return GraphedDecoder(self._decoder, self.cache, self._windows, self._planners, capture)

    def execute(self, plan: StepPlan) -> StepOutput:
        """Runs one step, in the order that StepPlan names. Results follow plan.selections. Raises
        DeviceLostError where a GPU does not answer any more."""
        return self.launch(plan)()

    @property
    def goes_ahead(self) -> bool:
        """Whether the draws of the step launched last are still here: see StepPlan.token_source."""
        return self._drawn is not None

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Callable[[], StepOutput]:
        """Starts what execute runs; what waits for it. Steps run in the order in which they are launched. On
        a CPU all of it has run by then."""
        with current(self.device):
            waiting = self._launch(plan)

        def output() -> StepOutput:
            with torch.inference_mode(), current(self.device):
                found = waiting()
            if any(result.error is not None for result in found.results):
                check_answers(self.device)  # a selection that fails tells of its own group alone
            return found

        return output

    def _launch(self, plan: StepPlan) -> Callable[[], StepOutput]:
        timings: dict[str, float] = {}
        drawn = self._take_drawn(plan)
        with timed(timings, "blocks"):
            self.cache.swap_out(plan.swap_out)
            self.cache.zero(plan.zero_blocks)
            self.cache.swap_in(plan.swap_in)
            self.cache.copy(plan.copies)
        if not len(plan.token_ids):
            return lambda: StepOutput(plan.step, (), timings)
        with timed(timings, "forward"):
            output, index, moved = self._forward_with_room(plan, drawn)
        results: Callable[[], tuple[SelectionResult, ...]] = tuple
        if plan.selections:
            results, self._drawn = selected(self._head, plan.selections, output, index, timings)

        def finish() -> StepOutput:
            with timed(timings, "select"):
                return StepOutput(plan.step, results(), timings, moved)

        return finish

    def warm_up(self, step_tokens: int = 0) -> None:
        """Has the compiled kernels ready, and the graphs of steps of up to step_tokens tokens, so that no
        request waits for them. The cache stays as it was.

        The first time on a machine this compiles for some ten seconds; then it loads from a cache. Raises
        whatever a kernel raises that can't run, and RuntimeError where one that moves blocks is wrong.
        """
        with current(self.device):
            if self._planners is not None:
                forest.warm_up()
            if self.device.type == "cuda":
                check_moves(self.cache.layer(0))
                self.cache.host_reached = host_reached(self.cache.layer(0))
            self._warm_steps()
            self._warm_graphs(step_tokens)

    def _warm_graphs(self, step_tokens: int) -> None:
        if self._graphed is not None and step_tokens:
            capture(self._graphed, self.cache, self._info, step_tokens, self._forward_with_room)

    def _warm_steps(self) -> None:
        model = PreparedModel(self._decoder, self._head, self._row_quantum)
        first_steps(model, self.cache, self._plans, self._windows)

    def _take_drawn(self, plan: StepPlan) -> torch.Tensor | None:
        """The tokens that the plan's token_source names rows of."""
        drawn, self._drawn = self._drawn, None
        if plan.token_source is None:
            return None
        if drawn is None:
            raise RuntimeError("the step before has drawn nothing that a step could go ahead with")
        return drawn.clamp(min=0)  # a row that draws none computes for nothing

    def _forward_with_room(self, plan: StepPlan, drawn: torch.Tensor | None = None) -> Forward:
        """Where memory is short, once more without graphs and what torch keeps for nobody. drawn: what
        plan.token_source names rows of."""
        try:
            return self._forward(plan, drawn)
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
        check_answers(self.device)  # and has done with the step before, whose graph goes
        if self._graphed is not None:
            self._graphed.make_room()
        give_back()
        return self._forward(plan, drawn)

    def _forward(self, plan: StepPlan, drawn: torch.Tensor | None) -> Forward:
        if self._graphed is not None and self._graphed.takes(plan):
            found = self._graphed(plan, drawn)
            if found is not None:
                return found
        tokens, positions = self._pad(plan.token_ids), self._pad(plan.positions)
        shape = StepShape(plan.segments, plan.decodes, len(tokens))
        if self._planners is not None:
            planned = self._planners.plan_all(shape)
            if planned and not self._planners.too_large(planned):
                return self._by_one_copy(plan, planned, len(tokens), drawn)
        ids, places, slots, index = (
            torch.from_numpy(each).to(self.device)
            for each in (tokens, positions, plan.slots, plan.logits_index)
        )
        if drawn is not None:
            ids[: len(plan.token_ids)] = drawn[torch.from_numpy(plan.token_source).to(self.device)]
        attention = StepAttention(self.cache, self._plans(shape), slots, self._windows)
        # Of a prompt's tokens few are read from; to compute these alone needs products that leave rows alone.
        wanted = index if self._row_quantum == 1 else None
        return self._decoder(ids, places, attention, wanted), index, attention.moved()

    def _plans(self, shape: StepShape) -> AttentionPlans:
        if self._planners is not None:
            return NodePlans(self._planners, shape, self.device)
        size, null = self.cache.block_size, self.cache.null_block
        return WorkPlans(make_work(shape.segments, shape.decodes, shape.num_tokens, size, null))

    def _by_one_copy(
        self,
        plan: StepPlan,
        planned: Mapping[Key, ForestPlan],
        num_tokens: int,
        drawn: torch.Tensor | None,
    ) -> Forward:
        size = StepSize(num_tokens, len(plan.token_ids), len(plan.logits_index))
        step = StaticStep(size, self.cache, self._windows, planned)
        index = step.fill(plan, planned, drawn)
        output = self._decoder(step.tokens, step.positions, step.attention)
        return output, index, step.attention.moved()

    def _pad(self, values: I64) -> I64:
        """Up to the row quantum with zeros: token 0 at position 0, written nowhere, read by none."""
        return np.pad(values, (0, -len(values) % self._row_quantum))
