"""The life of requests, from `add` to their last event, a step at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from forkdecode.config import EngineConfig
from forkdecode.errors import CancelledError as Cancelled
from forkdecode.errors import CapacityError, ForkdecodeError, QueueFullError, invalid
from forkdecode.kv.block_pool import BlockPool
from forkdecode.kv.bytes_moved import BytesMoved
from forkdecode.kv.prefix_cache import PrefixCache
from forkdecode.kv.step_reads import KvLayers
from forkdecode.kv.swap import HostPool
from forkdecode.results import EngineStats
from forkdecode.scheduler.admission import Admission
from forkdecode.scheduler.batching import Batcher
from forkdecode.scheduler.commit import commit_selection, started
from forkdecode.scheduler.commit_together import all_going_on, beam_events, commit_going_on
from forkdecode.scheduler.ending import Endings
from forkdecode.scheduler.events import GroupEvent
from forkdecode.scheduler.group import SequenceGroup
from forkdecode.scheduler.held_rows import HeldRows
from forkdecode.scheduler.keeping import check_keep
from forkdecode.scheduler.moving import Moving
from forkdecode.scheduler.plan import PlanBuilder
from forkdecode.scheduler.planner import Planner
from forkdecode.scheduler.preemption import PreemptionCost, Preemptor
from forkdecode.scheduler.request import DecodeRequest, TreeOp, check_capacity
from forkdecode.scheduler.snapshot import snapshot
from forkdecode.scheduler.stats import Counters
from forkdecode.step import StepOutput, StepPlan
from forkdecode.strategies.factory import make_policy
from forkdecode.strategies.policy import Policy
from forkdecode.strategies.together import GoingOn

QUEUE_RETRY = 1.0
"""Seconds after which a full queue may have room again."""


class Scheduler:
    """Owns every group from `add` to its last event. Not thread-safe.

    Call schedule(), execute the plan, then commit(output), or abort(cause) if it failed. Between the two
    schedule_ahead() may be called, once for each step that is planned and not committed; what it plans is
    executed and committed next, in place of what schedule() would say. layers: of the model, for the
    statistics alone, which count the bytes of steps whose output tells what was read.
    """

    def __init__(
        self,
        config: EngineConfig,
        num_blocks: int,
        num_host_slots: int,
        cost: PreemptionCost,
        cache_root: bytes,
        clock: Callable[[], float] = time.monotonic,
        layers: KvLayers = (),
    ) -> None:
        self._config = config
        self._layers = layers
        self.pool = BlockPool(num_blocks, config.block_size)
        self.cache = PrefixCache(self.pool, cache_root) if config.prefix_cache else None
        self.host = HostPool(num_host_slots)
        self._counters = counters = Counters()
        swaps = cost.swaps(config.preemption, 1, config.block_size)
        self.held = held = HeldRows(self.pool, self.host, swaps, counters)
        preemptor = Preemptor(config.preemption, cost, self.pool, self.host, held)
        self._clock = clock
        admission = Admission(self.pool, self.cache, held, preemptor, counters, config.watermark)
        self._batcher = Batcher(config, self.pool, admission, held, preemptor, counters, clock)
        self._groups: dict[str, SequenceGroup] = {}
        self._planner = planner = Planner(self.pool, self._batcher, counters, layers)
        self._ends = Endings(self._groups, self._batcher, planner, preemptor, held, counters, clock)
        self._failures: list[GroupEvent] = []
        self._untold: list[tuple[SequenceGroup, GoingOn]] = []
        self._idle_steps = 0
        self._number = 0

    # -- requests ---------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        waiting, planned = len(self._batcher.waiting), self._planner.has_planned
        return bool(self._batcher.running or waiting or self._failures or planned)

    def check_request(self, request: DecodeRequest) -> None:
        """Raises CapacityError for a request that the pool could never serve, InvalidRequestError for one
        whose candidates no node can keep. Reads what is fixed alone, so any thread may ask."""
        policy = _policy(request)
        check_keep(request, policy)
        check_capacity(
            request,
            policy.max_rows,
            self.pool.num_blocks,
            self.pool.block_size,
            overcommit=self._config.overcommit,
        )

    def add(self, request: DecodeRequest) -> None:
        """Queues a request. Raises CapacityError (too big, or the queue is full) and
        InvalidRequestError (an id in use); nothing is kept then."""
        if request.request_id in self._groups:
            raise invalid("request_id", f"{request.request_id!r} is in use", "an id of no running request")
        if len(self._batcher.waiting) >= self._config.max_waiting:
            raise QueueFullError(
                f"{len(self._batcher.waiting)} requests are waiting, which is the limit",
                request_id=request.request_id,
                retry_after=QUEUE_RETRY,
            )
        self.check_request(request)
        self._number += 1
        group = SequenceGroup(self._number, request, _policy(request), self._clock())
        self._groups[request.request_id] = group
        self.held.released.enter(group.number, request)
        self._batcher.waiting.push(group, self._planner.step)

    def cancel(self, request_id: str) -> list[GroupEvent]:
        """Ends a request between two steps and frees all it holds; unknown ids are ignored."""
        group = self._groups.get(request_id)
        if group is None:
            return []
        error = Cancelled("the request was cancelled", request_id=request_id)
        return [*self.tell(), self._ends.fail(group, error)]

    def tree(self, op: TreeOp) -> None:
        """Shares or releases what nodes hold, between two steps."""
        self.held.obey(op)
        self._batcher.reconsider()

    def forget(self) -> None:
        """What the prefix cache and nodes hold is nowhere any more, for other weights compute other keys and
        values. Only while there are no groups."""
        self.held.lose_all()
        if self.cache is not None:
            self.cache.forget()

    def preempt(self, request_id: str) -> None:
        """Takes a running request out of the pool at the next step; it comes back when it fits."""
        self._batcher.preempt(request_id)

    # -- schedule ---------------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """The next step's plan, or None when nothing can run."""
        plan, builder = self._planner.plan()
        stands = self._groups and not builder.tokens and not builder.broken
        self._idle_steps = self._idle_steps + 1 if stands else 0
        if self._idle_steps > 1:
            self._unblock()
        # Only now: the plan may hold part of their prefill, and blocks freed here are not in it again.
        for group, error in builder.broken:
            self._failures.append(self._ends.fail_by("internal error", error, group))
        return plan

    def schedule_ahead(self) -> StepPlan | None:
        """The plan of the step after the one that runs, but for its tokens: see scheduler.ahead. None where
        it is not known, or something else is to be done first."""
        return None if self._failures else self._planner.plan_ahead()

    def _unblock(self) -> None:
        """Nothing can run. Under overcommit the first group has outgrown the pool: it ends. (Blocks
        that copies read come back a step later, so one step without work proves nothing.) That none runs
        and the first that waits can't be let in should never be: it ends, lest all wait behind it. (Who was
        taken out in this step is asked in the next.)"""
        running, waiting = self._batcher.running, self._batcher.waiting.at(0)
        if running:
            group, table = running[0], running[0].table
            what = f"the pool ran out: {0 if table is None else table.blocks_needed(1)} more blocks needed"
        elif waiting is not None and self._idle_steps > 2:
            group, what = waiting, "the pool can't take it, though nothing else runs"
        else:
            return
        available = f"{self.pool.num_available} of {self.pool.num_blocks} available"
        self._failures.append(
            self._ends.fail(group, CapacityError(f"{what}, {available}", request_id=group.request_id))
        )

    # -- commit -----------------------------------------------------------------------------------

    def commit(self, output: StepOutput) -> list[GroupEvent]:
        """Carries out what the step's results mean; what happened, in order."""
        events = self.carry_out(output)
        return events + self.tell() if self._untold else events

    def tell(self) -> list[GroupEvent]:
        """What streamed beams have still to say of the step that was carried out last, once. It takes long,
        and changes nothing that schedule() plans with."""
        told, self._untold = self._untold, []
        return [event for group, going in told for event in beam_events(group, going)]

    def carry_out(self, output: StepOutput) -> list[GroupEvent]:
        """commit(), but for what tell() says."""
        builder, now = self._end_step(output), self._clock()
        events = self.tell() if self._untold else []
        events += self.drain_failures()
        there = [b for b in builder.blocks if self._groups.get(b.group.request.request_id) is b.group]
        events += [started(b.group) for b in there if b.group.request.stream and not b.group.announced]
        self._counters.count_blocks(there)
        moving = Moving()
        results = builder.answers(output.results)
        together = all_going_on(builder.groups, results)
        for group, result, going in zip(builder.groups, results, together, strict=True):
            if group.table is None:  # it has ended since, or an earlier one of its selections has failed
                continue
            try:
                if going is not None:
                    events += commit_going_on(group, result, going, moving)
                    if group.beam_stream is not None:
                        self._untold.append((group, going))
                    continue
                found, done = commit_selection(group, result, self.cache, self.held, moving, now)
                events += found
                if done:
                    events.append(self._ends.finish(group))
            except ForkdecodeError as error:
                error.request_id = group.request_id
                events.append(self._ends.fail(group, error))
            except Exception as error:
                events.append(self._ends.fail_by("internal error", error, group))
        if self._planner.has_planned:
            self._planner.moved(moving.parents)
        for group, wrong in moving.finish():
            self._untold = [one for one in self._untold if one[0] is not group]
            events.append(self._ends.fail_by("internal error", wrong, group))
        return events

    def abort(self, cause: Exception) -> list[GroupEvent]:
        """The step failed as a whole: its groups end with GroupFailedError, all others go on. So do
        groups end that were to be swapped by it, for nobody knows how far it came."""
        builder = self._end_step(None)
        events = [*self.tell(), *self.drain_failures()]
        self._planner.moves.zero_blocks += builder.moves.zero_blocks
        for group in [*builder.touched, *builder.moves.swapped]:
            if self._groups.get(group.request_id) is group:
                events.append(self._ends.fail_by(f"the model failed in step {builder.step}", cause, group))
        return events

    def drain_failures(self) -> list[GroupEvent]:
        """Events of groups that ended while a step was being planned."""
        events, self._failures = self._failures, []
        return events

    def _end_step(self, output: StepOutput | None) -> PlanBuilder:
        """What ran, or was to; output: None where the step failed."""
        builder = self._planner.end()
        self.host.moved()
        if output is None:
            self.held.failed()
        else:
            self.held.moved()
            if self._layers and output.attention_bytes is not None:
                self._counters.moved += BytesMoved(*builder.unshared, output.attention_bytes)
        self._counters.step_done(builder.rows)
        return builder

    # -- looking in -------------------------------------------------------------------------------

    @property
    def groups(self) -> Mapping[str, SequenceGroup]:
        """Every group from add() to its last event, by request id; for tools that look on."""
        return self._groups

    def stats(self) -> EngineStats:
        """A snapshot; call it between steps."""
        running, waiting = self._batcher.running, len(self._batcher.waiting)
        return snapshot(self._counters, self.pool, self.held, running, waiting, self._groups.values())

    def check(self) -> None:
        """Verifies every block count against its holders. Raises BlockAccountingError."""
        tables = [g.table for g in self._batcher.running if g.table is not None]
        self.pool.check([*tables, self.held, *([] if self.cache is None else [self.cache])])


def _policy(request: DecodeRequest) -> Policy:
    ends = np.concatenate([request.eos_ids, request.stop_ids])
    return make_policy(request.strategy, request.options, ends)
