"""One simulation: requests arrive, the real scheduler plans, the fake model answers, the clock moves by
what the cost model says that each step takes."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np

from benchmarks.simulate_cost import CostModel, StepTime, StepWork
from benchmarks.simulate_load import Load, Served, System
from benchmarks.simulate_model import FakeModel, forked_share
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
PROCESSORS = 132
"""Of an H200: the forest plan splits long nodes until these are busy."""


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
        max_len: int = 2048,
        stride: int = 8,
    ) -> None:
        self.system, self.load, self.cost = system, load, cost
        self._copies_of_rows = 1 if system.shared else load.width
        self._max_len = max_len
        self._stride = stride
        self.now = self.host_seconds = 0.0
        self.served = Served()
        self.time = StepTime()
        self.steps = self.rows = self.group_steps = 0
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
            ItemShape(BLOCK_SIZE, (16 // group, 64 // group), group, m.kv_heads, PROCESSORS)
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
            return Greedy()
        width = self.load.width
        return Beam(width) if self.load.kind == "beam" else Sample(width, seed=seed)

    def _requests(self) -> deque[tuple[float, DecodeRequest]]:
        """By arrival."""
        load, none = self.load, np.empty(0, np.int64)
        prompts, outputs = load.trace.lengths(load.count, load.seed)
        waiting: deque[tuple[float, DecodeRequest]] = deque()
        for i, at in enumerate(load.arrivals().tolist()):
            request = DecodeRequest(
                request_id=str(i),
                prompt=np.zeros(prompts[i], np.int64),
                strategy=self._strategy(i),
                options=Options(max_tokens=int(outputs[i])),
                seed=i,
                processors=ProcessorSpec(),
                eos_ids=none,
                stop_ids=none,
                automaton=None,
            )
            waiting.append((at, request))
        return waiting

    def _reserved(self, request: DecodeRequest) -> int:
        if self.system.reserve is None:
            return 0
        need = request.prompt_len + request.options.max_tokens
        return max(need, self._max_len) if self.system.reserve == "max" else need

    # -- time -------------------------------------------------------------------------------------

    def run(self) -> Simulation:
        """Until every request has ended."""
        waiting, arrived, reserved = self._requests(), {}, {}
        room = self._pool_tokens
        while waiting or self.scheduler.has_work:
            while waiting and waiting[0][0] <= self.now and self._reserved(waiting[0][1]) <= room:
                at, request = waiting.popleft()
                arrived[request.request_id] = (at, self.now)
                reserved[request.request_id] = self._reserved(request)
                room -= reserved[request.request_id]
                self.scheduler.add(request)
            if not self.scheduler.has_work:
                if waiting[0][0] <= self.now:
                    raise ValueError(f"request {waiting[0][1].request_id} can never fit")
                self.now = waiting[0][0]
                continue
            for event in self._step():
                if isinstance(event, GroupFailed):
                    raise event.error
                if isinstance(event, GroupFinished):
                    room += reserved.pop(event.request_id)
                    self._end(event, *arrived.pop(event.request_id))
        return self

    def _end(self, event: GroupFinished, arrived: float, submitted: float) -> None:
        usage, served = event.usage, self.served
        served.arrived.append(arrived)
        served.first.append(usage.time_to_first_token + submitted - arrived)
        served.per_token.append(usage.time_per_token)
        served.ended.append(self.now)

    def _step(self) -> Any:
        begin = time.process_time()
        plan = self.scheduler.schedule()
        self.host_seconds += time.process_time() - begin
        if plan is None:
            return self.scheduler.drain_failures()
        spent = self.cost.seconds(self._work(plan))
        self.time += spent
        self.now += spent.total
        pool = self.scheduler.pool
        self._used += spent.total * (1 - pool.num_available / pool.num_blocks)
        self.steps += 1
        output = self._model.execute(plan)
        begin = time.process_time()
        events = self.scheduler.commit(output)
        self.host_seconds += time.process_time() - begin
        return events

    def _work(self, plan: StepPlan) -> StepWork:
        times = self._copies_of_rows
        decoding = sum(d.rows for d in plan.decodes)
        row_tokens = sum(d.rows * d.context_len for d in plan.decodes)
        self.rows += decoding * times
        self.group_steps += len(plan.decodes)
        read, parts = float(row_tokens), 0.0
        if self.system.forest and row_tokens:
            share, parts_a_row = self._forest_reads(plan)
            read, parts = row_tokens * share, decoding * parts_a_row
        for s in plan.segments:
            # A tile of queries reads all before it; tiles are long, so that reads stay behind FLOPs.
            read += s.position + s.token_count
            row_tokens += s.token_count * (2 * s.position + s.token_count + 1) // 2
        copied = len(plan.copies) * BLOCK_SIZE if self.system.shared else 0.0
        copied += self._moved * sum(d.rows * d.context_len for d in plan.decodes)
        return StepWork(
            tokens=len(plan.token_ids) * times,
            rows=decoding * times,
            read_tokens=read * times,
            row_tokens=row_tokens * times,
            parts=parts * times,
            copied_tokens=copied * times,
        )

    def _forest_reads(self, plan: StepPlan) -> tuple[float, float]:
        """Tokens read for each token that rows without sharing would read, and parts a row; planned anew
        every `stride` steps, for it changes slowly."""
        if self.steps % self._stride == 0 or self._forest[0] == 1.0:
            forest = self._planner.plan((), plan.decodes, sum(d.rows for d in plan.decodes))
            rows = sum(d.rows for d in plan.decodes)
            self._forest = (forest.node_tokens / forest.row_tokens, forest.num_parts / rows)
        return self._forest

    # -- what came out ----------------------------------------------------------------------------

    def report(self, first_target: float, token_target: float) -> dict[str, Any]:
        """goodput counts requests whose first token came within first_target seconds and whose others
        came within token_target seconds each on average; both rates leave out the first tenth of the
        arrivals and what ends after the last of them, where requests keep coming."""
        s, stats = self.served, self.scheduler.stats()
        arrived, ended = np.array(s.arrived), np.array(s.ended)
        met = (np.array(s.first) <= first_target) & (np.array(s.per_token) <= token_target)
        begin, end = (0.0, self.now)
        if self.load.rate:
            begin, end = float(np.sort(arrived)[len(arrived) // 10]), float(arrived.max())
        inside = (ended >= begin) & (ended <= end)
        mine = (arrived >= begin) & (arrived <= end)
        span = max(end - begin, 1e-9)
        times = self._copies_of_rows
        parts = {name: getattr(self.time, name) for name in self.time.__dataclass_fields__}
        return {
            "requests_per_second": float(inside.sum()) / span,
            "goodput": float((mine & met).sum()) / span,
            "met": float(met[mine].mean()),
            "tokens_per_second": stats.generated_tokens * times / self.now,
            "first_token_p50": float(np.median(s.first)),
            "first_token_p90": float(np.quantile(s.first, 0.9)),
            "time_per_token_p50": float(np.median(s.per_token)),
            "time_per_token_p90": float(np.quantile(s.per_token, 0.9)),
            "seconds": self.now,
            "steps": self.steps,
            "rows_a_step": self.rows / self.steps,
            "groups_a_step": self.group_steps / self.steps,
            "step_ms": 1e3 * self.time.total / self.steps,
            "time_shares": {k: round(v / self.time.total, 4) for k, v in parts.items()},
            "pool_use": self._used / self.time.total,
            "saving": stats.saved,
            "preemptions": stats.preemptions,
            "recomputed_tokens": stats.recomputed_tokens * times,
            "host_ms_a_step": 1e3 * self.host_seconds / self.steps,
            "host_us_a_group_step": 1e6 * self.host_seconds / max(1, self.group_steps),
        }
