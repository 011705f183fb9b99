"""One simulation: requests arrive, the real scheduler plans, the fake model answers, the clock moves by
what the cost model says that each step takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.simulate_cost import CostModel, Host, StepTime, StepWork, prompt_work
from benchmarks.simulate_load import Load, System
from benchmarks.simulate_model import FakeModel, forked_share
from benchmarks.simulate_served import Served, Target
from forkdecode.config import EngineConfig
from forkdecode.kv.forest_items import ItemShape
from forkdecode.kv.forest_plan import ForestPlanner
from forkdecode.scheduler.events import GroupFailed, GroupFinished
from forkdecode.scheduler.preemption import PreemptionCost
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.scheduler.scheduler import Scheduler
from forkdecode.step import ProcessorSpec, StepPlan
from forkdecode.types import Beam, Greedy, Options, Sample, Strategy

BLOCK_SIZE = 16
STEP_TOKENS, PREFILL_TOKENS = 8192, 2048
GREEDY, NO_PROCESSORS, NO_IDS = Greedy(), ProcessorSpec(), np.empty(0, np.int64)


class Simulation:
    """System, load and cost model joined. A system that shares nothing is W independent rows in lockstep:
    one row on a W-th of the pool with W times the cost is the same, and takes a W-th of the time."""

    def __init__(
        self,
        system: System,
        load: Load,
        cost: CostModel,
        *,
        sharpness: float,
        target: Target,
        max_len: int = 2048,
        stride: int = 8,
        host: Host | None = None,
    ) -> None:
        self.system, self.load, self.cost, self.target = system, load, cost, target
        self._copies_of_rows = 1 if system.shared else load.width
        self._max_len = max_len
        self._stride = stride
        self._host = host or Host()
        self.now = self.host_seconds = 0.0
        self.served = Served(load.count)
        self.time = StepTime()
        self.steps = self.rows = self.group_steps = self.most_groups = self.missed = 0
        self.arrivals = load.arrivals()
        self._prompts, self._outputs = load.trace.lengths(load.count, load.seed)
        self._prompt = np.zeros(int(self._prompts.max()), np.int64)
        self._beam = Beam(load.width)
        self._options: dict[int, Options] = {}
        self._running: dict[str, tuple[float, float, int]] = {}
        """When it arrived and was let in, and the tokens that it reserved."""
        self._next = 0
        self._model = FakeModel(load.width, sharpness, load.seed)
        self._moved = self._moved_rows(sharpness)
        m, times = cost.model, self._copies_of_rows
        self._pool_tokens = cost.pool_tokens // times
        self.scheduler = Scheduler(
            EngineConfig(
                block_size=BLOCK_SIZE,
                prefix_cache=False,
                max_step_tokens=max(1, STEP_TOKENS // times),
                max_prefill_tokens=max(1, PREFILL_TOKENS // times),
                max_waiting=load.count,
            ),
            self._pool_tokens // BLOCK_SIZE,
            0,
            PreemptionCost(1.0, 1.0),
            b"simulation",
            clock=lambda: self.now,
        )
        group = m.heads // m.kv_heads
        self._planner = ForestPlanner(
            ItemShape(BLOCK_SIZE, (16 // group, 64 // group), group, m.kv_heads, cost.accelerator.processors)
        )
        self._forest = (1.0, 0.0)
        self._used = 0.0

    def _moved_rows(self, sharpness: float) -> float:
        """Share of a beam's contexts that a step copies whole."""
        if self.load.kind != "beam" or self.system.copies == "blocks":
            return 0.0
        return 1.0 if self.system.copies == "all" else forked_share(self.load.width, sharpness)

    # -- requests ---------------------------------------------------------------------------------

    def _strategy(self, seed: int) -> Strategy:
        if not self.system.shared:
            return GREEDY
        width = self.load.width
        return self._beam if self.load.kind == "beam" else Sample(width, seed=seed)

    def _request(self, number: int) -> DecodeRequest:
        """Made when it arrives: of a million requests only those that run are there."""
        output = int(self._outputs[number])
        options = self._options.get(output)
        if options is None:
            options = self._options[output] = Options(max_tokens=output)
        return DecodeRequest(
            request_id=str(number),
            prompt=self._prompt[: self._prompts[number]],
            strategy=self._strategy(number),
            options=options,
            seed=number,
            processors=NO_PROCESSORS,
            eos_ids=NO_IDS,
            stop_ids=NO_IDS,
            automaton=None,
        )

    def _reserved(self, number: int) -> int:
        if self.system.reserve is None:
            return 0
        need = int(self._prompts[number] + self._outputs[number])
        return max(need, self._max_len) if self.system.reserve == "max" else need

    # -- time -------------------------------------------------------------------------------------

    def run(self, tell: Callable[[Simulation], bool] = lambda _: True) -> Simulation:
        """Until every request has ended, or `tell`, asked after each step, says no."""
        self._room = self._pool_tokens
        while (self._next < self.load.count or self.scheduler.has_work) and tell(self):
            self._let_in()
            if not self.scheduler.has_work:
                if self.arrivals[self._next] <= self.now:
                    raise ValueError(f"request {self._next} can never fit")
                self.now = float(self.arrivals[self._next])
                continue
            for event in self._step():
                if isinstance(event, GroupFailed):
                    raise event.error
                if isinstance(event, GroupFinished):
                    self._end(event)
        return self

    def _let_in(self) -> None:
        """Those that have arrived, while there is room for what they reserve."""
        while self._next < self.load.count and self.arrivals[self._next] <= self.now:
            reserved = self._reserved(self._next)
            if reserved > self._room:
                return
            self._room -= reserved
            request = self._request(self._next)
            self._running[request.request_id] = (float(self.arrivals[self._next]), self.now, reserved)
            self.scheduler.add(request)
            self._next += 1

    def _end(self, event: GroupFinished) -> None:
        usage = event.usage
        arrived, submitted, reserved = self._running.pop(event.request_id)
        self._room += reserved
        first = usage.time_to_first_token + submitted - arrived
        self.served.add(arrived, first, usage.time_per_token, self.now)
        self.missed += not self.target.met(first, usage.time_per_token)

    def _step(self) -> Any:
        begin = time.thread_time()
        plan = self.scheduler.schedule()
        self.host_seconds += time.thread_time() - begin
        if plan is None:
            return self.scheduler.drain_failures()
        begun = [len(s.prompt) for s in plan.selections if not s.num_generated]
        work = self._rows_work(plan) + self._prompts_work(plan, begun)
        spent = replace(self.cost.seconds(work), host=self._host.seconds(len(plan.decodes), len(begun)))
        self.time += spent
        self.now += spent.total
        pool = self.scheduler.pool
        self._used += spent.total * (1 - pool.num_available / pool.num_blocks)
        self.steps += 1
        output = self._model.execute(plan)
        begin = time.thread_time()
        events = self.scheduler.commit(output)
        self.host_seconds += time.thread_time() - begin
        return events

    def _prompts_work(self, plan: StepPlan, begun: list[int]) -> StepWork:
        """begun: the lengths of prompts that end in this step. What a preempted beam computes again counts as
        its prompt."""
        work, times = prompt_work(plan.segments), self._copies_of_rows
        if not self.system.prompt_once:
            return work * times
        # A prompt's last token is among the rows that decode, and counts there for all of them.
        last = StepWork(len(begun), len(begun), sum(begun), sum(begun))
        copied = (times - 1) * (work.tokens + last.tokens)
        return work + last * (1 - times) + StepWork(0, 0, 0, 0, copied_tokens=copied)

    def _rows_work(self, plan: StepPlan) -> StepWork:
        times = self._copies_of_rows
        rows = [len(d.tails) for d in plan.decodes]
        decoding = sum(rows)
        row_tokens = sum([n * d.context_len for n, d in zip(rows, plan.decodes, strict=True)])
        self.rows += decoding * times
        self.group_steps += len(rows)
        self.most_groups = max(self.most_groups, len(rows))
        copied = len(plan.copies) * BLOCK_SIZE if self.system.shared else 0.0
        copied += self._moved * row_tokens
        read, parts = float(row_tokens), 0.0
        if self.system.forest and row_tokens:
            share, parts_a_row = self._forest_reads(plan)
            read, parts = row_tokens * share, decoding * parts_a_row
        return StepWork(decoding, decoding, read, row_tokens, parts, copied) * times

    def _forest_reads(self, plan: StepPlan) -> tuple[float, float]:
        """Tokens read for each token that rows without sharing would read, and parts a row; planned anew
        every `stride` steps, for it changes slowly."""
        if self.steps % self._stride == 0 or self._forest[0] == 1.0:
            forest = self._planner.plan((), plan.decodes, sum(d.rows for d in plan.decodes))
            rows = sum(d.rows for d in plan.decodes)
            self._forest = (forest.node_tokens / forest.row_tokens, forest.num_parts / rows)
        return self._forest

    # -- what came out ----------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Of what has ended so far; see Served.report for the rates."""
        stats, times = self.scheduler.stats(), self._copies_of_rows
        parts = {name: getattr(self.time, name) for name in self.time.__dataclass_fields__}
        return {
            **self.served.report(self.target, self.arrivals, self.now),
            "tokens_per_second": stats.generated_tokens * times / self.now,
            "seconds": self.now,
            "steps": self.steps,
            "rows_a_step": self.rows / self.steps,
            "groups_a_step": self.group_steps / self.steps,
            "most_groups": self.most_groups,
            "step_ms": 1e3 * self.time.total / self.steps,
            "time_shares": {k: round(v / self.time.total, 4) for k, v in parts.items()},
            "pool_use": self._used / self.time.total,
            "saving": stats.saved,
            "preemptions": stats.preemptions,
            "recomputed_tokens": stats.recomputed_tokens * times,
            "host_ms_a_step": 1e3 * self.host_seconds / self.steps,
            "host_us_a_group_step": 1e6 * self.host_seconds / max(1, self.group_steps),
        }
