"""Runs a step on the model: block moves, forward pass, logits, selections."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from forkdecode.config import Compile, Weights
from forkdecode.kv.forest_plan import ForestPlan
from forkdecode.model.attention import AttentionPlans, StepAttention, WorkPlans
from forkdecode.model.device import check_answers, current, give_back, lacks_memory
from forkdecode.model.gpu_kernels import check_moves, host_reached, kernels_fit
from forkdecode.model.graph_capture import GraphCapture
from forkdecode.model.graphed import GraphedDecoder, sizes
from forkdecode.model.info import ModelInfo
from forkdecode.model.kv_cache import KvCache
from forkdecode.model.node_plans import Key, NodePlans, Planners
from forkdecode.model.prepared import PreparedModel, Preparing
from forkdecode.model.static_step import Forward, StaticStep, StepSize
from forkdecode.model.step_shape import StepShape
from forkdecode.model.trial_steps import TrialSteps
from forkdecode.sampling.device.select import Selecting
from forkdecode.sampling.gather import cut, joined
from forkdecode.sampling.select import begin
from forkdecode.step import (
    I64,
    BlockMoves,
    DecodeRows,
    QuerySegment,
    SelectionRequest,
    SelectionResult,
    StepOutput,
    StepPlan,
)
from forkdecode_kernels import forest
from forkdecode_kernels.attention_work import make_work


class Runner:
    """Executes step plans. Owns the model and the KV cache's memory; one thread calls it at a time.

    The model is prepared in place, and belongs to the runner from then on: on a CPU its weights are
    repacked. threads: torch's thread count for the whole process; None leaves it. decoder: "auto"
    takes LeanDecoder for the models that it knows, "generic" transformers' own modules for all.
    attention: "nodes" runs from node lists on a CPU too, as on a GPU. weights: see EngineConfig; "int8"
    leaves expert layers as they are; compiles: its `compile`; batch_invariant: see Planners. Raises
    InvalidRequestError where one of them can't be had.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        info: ModelInfo,
        block_size: int,
        num_blocks: int,
        num_host_slots: int,
        dtype: torch.dtype,
        device: torch.device | str,
        threads: int | None = None,
        decoder: Literal["auto", "generic"] = "auto",
        attention: Literal["auto", "nodes"] = "auto",
        weights: Weights = "native",
        compiles: Compile = "none",
        batch_invariant: bool = True,
    ) -> None:
        self.device = torch.device(device)
        prepare = Preparing(dtype, self.device, decoder, weights, compiles)
        prepare.check(model)
        if threads is not None:
            torch.set_num_threads(threads)
        self._take(prepare(model, info.vocab_size))
        self._info = info
        self._windows = info.windows
        self.cache = KvCache(info, block_size, num_blocks, num_host_slots, dtype, self.device)
        self._planners: Planners | None = None
        on_gpu = self.device.type == "cuda"
        if attention == "nodes" or (on_gpu and kernels_fit(model, self.cache, info.windows, batch_invariant)):
            self._planners = Planners(block_size, self.device, batch_invariant=batch_invariant)
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
        with _timed(timings, "blocks"):
            self.cache.swap_out(plan.swap_out)
            self.cache.zero(plan.zero_blocks)
            self.cache.swap_in(plan.swap_in)
            self.cache.copy(plan.copies)
        if not len(plan.token_ids):
            return lambda: StepOutput(plan.step, (), timings)
        with _timed(timings, "forward"):
            output, index, moved = self._forward_with_room(plan, drawn)
        results = self._select(plan, output, index, timings) if plan.selections else tuple

        def finish() -> StepOutput:
            with _timed(timings, "select"):
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

    @torch.inference_mode()
    def _warm_graphs(self, step_tokens: int) -> None:
        if self._graphed is None or not step_tokens:
            return
        info = self._info
        steps = TrialSteps(self.cache.block_size, self.cache.num_blocks, info.max_positions, info.vocab_size)
        self._forward_with_room(steps.prompt())
        self._capture(self._graphed, (pair for size in sizes(step_tokens) for pair in steps.pairs(size)))
        self.cache.zero(steps.blocks)

    def _capture(self, graphed: GraphedDecoder, pairs: Iterable[tuple[StepPlan, StepPlan]]) -> None:
        """An engine that lacks the memory for its graphs serves without them."""
        try:
            graphed.warm_up(pairs)
            return
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
        graphed.make_room()  # not before, for what was raised holds a step's tensors
        give_back()

    def _warm_steps(self) -> None:
        none, null_table = np.empty(0, np.int32), np.full((2, 1), self.cache.null_block, np.int32)
        # A prompt's token and two rows of context 1, which read the null block; nothing is written to it. The
        # rows alone as well: the lean decoder has a way of its own for them.
        segment = QuerySegment(0, 1, 0, null_table[0])
        slots = torch.full((0 if self.device.type == "cpu" else 2,), -1, dtype=torch.int64).to(self.device)
        with torch.inference_mode():
            self.cache.copy(BlockMoves(null_table[0], null_table[0]))  # zeros onto themselves
            for segments in ((segment,), ()):
                tokens = self._pad(np.zeros(len(segments) + 2, np.int64))
                rows = DecodeRows(len(segments), none, null_table, 1)
                plans = self._plans(StepShape(segments, (rows,), len(tokens)))
                ids = torch.from_numpy(tokens).to(self.device)
                step = StepAttention(self.cache, plans, slots, self._windows)
                self._head(self._decoder(ids, ids, step), ids[:1])

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

    def _select(
        self, plan: StepPlan, output: ModelOutput, index: torch.Tensor, timings: dict[str, float]
    ) -> Callable[[], tuple[SelectionResult, ...]]:
        """Starts logits and selections, groups in runs whose logits stay within the head's byte bound; what
        waits for the last of them. index: plan.logits_index on the device."""
        limit = self._head.max_rows
        cuts = [(s,) if s.rows <= limit else tuple(cut(s, limit)) for s in plan.selections]
        pieces = tuple(piece for pieces in cuts for piece in pieces)
        found: list[SelectionResult] = []
        last = Selecting(tuple)
        for first, end in self._head.runs([s.rows for s in pieces]):
            found.extend(last.results())  # before there are more logits
            requests = pieces[first:end]
            start, stop = requests[0].logits_start, requests[-1].logits_start + requests[-1].rows
            with _timed(timings, "logits"):
                logits = self._head(output, index[start:stop])
            with _timed(timings, "select"):
                last = begin(logits, _shifted(requests, start))

        self._drawn = None if found else last.drawn

        def results() -> tuple[SelectionResult, ...]:
            every = iter([*found, *last.results()])
            if len(pieces) == len(cuts):
                return tuple(every)
            return tuple(joined(pieces, list(itertools.islice(every, len(pieces)))) for pieces in cuts)

        return results


def _shifted(requests: tuple[SelectionRequest, ...], start: int) -> tuple[SelectionRequest, ...]:
    """The requests with logits_start counted from row `start`."""
    if start == 0:
        return requests
    return tuple(dataclasses.replace(r, logits_start=r.logits_start - start) for r in requests)


@contextmanager
def _timed(timings: dict[str, float], part: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    timings[part] = timings.get(part, 0.0) + time.perf_counter() - begin
