"""Continuous batching: which groups compute what in a step, and who makes room for whom."""

from __future__ import annotations

import bisect
from collections.abc import Callable

from forkdecode.config import EngineConfig
from forkdecode.kv.block_pool import BlockPool
from forkdecode.kv.block_table import BlockTable, Extension
from forkdecode.kv.table_batch import room_for_all
from forkdecode.scheduler.admission import Admission, origins
from forkdecode.scheduler.extending import extend_groups
from forkdecode.scheduler.group import SequenceGroup, Span
from forkdecode.scheduler.held_rows import HeldRows
from forkdecode.scheduler.plan import PlanBuilder
from forkdecode.scheduler.preemption import Preemptor
from forkdecode.scheduler.queue import WaitingQueue
from forkdecode.scheduler.stats import Counters
from forkdecode.step import I64, BlockMoves

MAX_AHEAD = 8
"""Steps in a row that are planned ahead while somebody waits for room, which rows that end may have made."""


class Batcher:
    """Fills a PlanBuilder, in this order: rows that are ready to decode, then admissions, then, with
    what is left of the token budget, prefill and rows whose next tokens are known.

    running: groups with a table, in rank order; waiting: those without.
    """

    def __init__(
        self,
        config: EngineConfig,
        pool: BlockPool,
        admission: Admission,
        held: HeldRows,
        preemptor: Preemptor,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self.running: list[SequenceGroup] = []
        self.waiting = WaitingQueue(config.aging_steps)
        self._config = config
        self._pool = pool
        self._admission = admission
        self._held = held
        self._preemptor = preemptor
        self._counters = counters
        self._clock = clock
        self._to_park: set[str] = set()
        self._refused = self._refused_at = 0
        """How many waited when there was no room for more, and in which step."""

    def preempt(self, request_id: str) -> None:
        """Takes a running group out of the pool at the next step; it comes back when it fits."""
        self._to_park.add(request_id)

    def reconsider(self) -> None:
        """Blocks have become free: a group that waits may fit now."""
        self._refused = 0

    def remove(self, group: SequenceGroup) -> None:
        """Forgets a group that has ended."""
        self.reconsider()
        if group in self.running:
            self.running.remove(group)
        else:
            self.waiting.remove(group)

    def stands_still(self, step: int) -> bool:
        """Whether no group is to be taken out, and none could be let in when they were last considered."""
        if self._to_park:
            return False
        if not len(self.waiting):
            return True
        return len(self.waiting) == self._refused and step - self._refused_at < MAX_AHEAD

    def fill(self, builder: PlanBuilder) -> None:
        """Plans a step."""
        self.waiting.age(builder.step)
        preempted = self._counters.preemptions
        for group in [g for g in self.running if g.request_id in self._to_park]:
            self._park(group, builder)
        self._to_park.clear()
        self._decode_ready(builder)
        # Blocks that were just taken from one group are not for a new one.
        if self._counters.preemptions == preempted:
            self._admit(builder)
        self._prefill(builder)

    def _decode_ready(self, builder: PlanBuilder) -> None:
        """Rows of groups whose KV is complete. Those left out of a step that was full go first."""
        ready = [g for g in self.running if not g.pending and g.policy.forced is None]
        ready.sort(key=lambda g: g.last_step)
        if len(ready) > 1 and self._decode_together(ready, builder):
            return
        for group in ready:
            if builder.tokens >= self._config.max_step_tokens:
                return
            if group.table is not None:  # not preempted for one before it
                self._decode(group, builder)

    def _decode_together(self, ready: list[SequenceGroup], builder: PlanBuilder) -> bool:
        """Plans the next token of all these groups, if that fits without making room. Usual, and with
        many small groups much faster than one by one."""
        tables = [g.table for g in ready if g.table is not None]
        rows = sum([len(t.tails) for t in tables])
        if builder.tokens + rows > self._config.max_step_tokens or not room_for_all(tables):
            return False
        extended = extend_groups(ready, tables, builder.step, self._counters)
        builder.decode_all(ready, tables, extended)
        return True

    def _decode(self, group: SequenceGroup, builder: PlanBuilder, count: int = 1) -> bool:
        """Plans one token of every row, all rows even above the budget; up to `count` where they are
        known and fit into free blocks. Makes room for one by rows that nodes hold, then by preempting
        lower-ranked groups that this step does not run."""
        table = group.table
        assert table is not None
        while (short := table.shortfall(1)) > 0:
            if self._held.reclaim(short, origins(self.running), builder.moves):
                continue
            victim = self._victim(group, builder)
            if victim is None:
                if group is self.running[0] and self._held.reclaim(short, (), builder.moves):
                    continue
                return False
            self._park(victim, builder)
            if victim is group:
                return False
        while count > 1 and table.blocks_needed(count) > self._pool.num_available:
            count //= 2
        plan = builder.decode if count == 1 else builder.decode_known
        return self._planned(group, table, table.extend(count), plan, builder)

    def _planned(
        self,
        group: SequenceGroup,
        table: BlockTable,
        extension: Extension,
        plan: Callable[[SequenceGroup, BlockTable, I64, BlockMoves], None],
        builder: PlanBuilder,
    ) -> bool:
        """Whether the group, whose table has been extended, could say what it wants of this step."""
        copies = len(extension.copies)
        if copies:
            group.costs.copies += copies
            self._counters.copies += copies
        group.last_step = builder.step
        try:
            plan(group, table, extension.slots, extension.copies)
        except Exception as error:
            builder.broken.append((group, error))
            return False
        return True

    def _victim(self, group: SequenceGroup, builder: PlanBuilder) -> SequenceGroup | None:
        """The lowest-ranked group behind `group` that this step does not run, else `group` itself,
        unless it is the first in rank: that one is never preempted, so that work always ends."""
        for other in reversed(self.running):
            if other is group:
                break
            if builder.step not in (other.last_step, other.admitted_step):
                return other
        # What was swapped in for this step has not arrived yet. And while others run in this step,
        # to wait for one of them to finish costs less.
        keeps = group is self.running[0] or builder.tokens or group.admitted_step == builder.step
        return None if keeps else group

    def _park(self, group: SequenceGroup, builder: PlanBuilder) -> None:
        self._counters.swapped_blocks += self._preemptor.park(group, builder.moves)
        self._counters.preemptions += 1
        self.running.remove(group)
        self.waiting.push(group, builder.step)

    def _admit(self, builder: PlanBuilder) -> None:
        """Lets waiting groups in, in order, while there are blocks and tokens of the budget left. Only
        those that wait for what another group is computing are passed over."""
        self._refused = 0
        if not len(self.waiting):
            return
        budget = self._prefill_budget(builder) - sum([g.pending_tokens for g in self.running if g.pending])
        ahead = sum([g.next_rows_bound for g in self.running])
        place = 0
        while budget > 0:
            group = self.waiting.at(place)
            if group is None:
                return
            if group.request.origin is not None and self._admission.follows(group, self.running):
                place += 1
                continue
            if not self._admission.admit(group, self.running, ahead, builder.moves):
                break
            ahead += group.next_rows_bound
            self.waiting.pop(place)
            bisect.insort(self.running, group, key=lambda g: g.rank)
            group.admitted_step = builder.step
            if group.costs.admitted is None:
                group.costs.admitted = self._clock()
                self._counters.cached_prompt_tokens += group.costs.cached_tokens
            else:
                self._counters.recomputed_tokens += group.pending_tokens
            budget -= group.pending_tokens + group.num_rows
        self._refused, self._refused_at = len(self.waiting), builder.step

    def _prefill_budget(self, builder: PlanBuilder) -> int:
        """Tokens that this step may prefill: running streams wait for at most max_prefill_tokens."""
        left = self._config.max_step_tokens - builder.tokens
        return min(left, self._config.max_prefill_tokens) if builder.rows else left

    def _prefill(self, builder: PlanBuilder) -> None:
        """Spans still to be computed, first in rank first. A group of one row whose last span fits
        decodes in the same step: in each layer all keys and values are written before attention
        reads. Several rows may have to copy a block that the spans fill only after the copies ran.
        """
        budget = self._prefill_budget(builder)
        for group in list(self.running):
            if budget <= 0:
                return
            if group.last_step == builder.step or group.table is None:
                continue
            computed = bool(group.pending)
            while group.pending and budget > 0:
                budget -= self._compute_span(group, budget, builder)
            if group.pending or (computed and group.num_rows > 1):
                continue
            count = max(1, min(group.ahead, budget // group.num_rows))
            before = builder.tokens
            if self._decode(group, builder, count):
                budget -= builder.tokens - before

    def _compute_span(self, group: SequenceGroup, budget: int, builder: PlanBuilder) -> int:
        assert group.table is not None
        span = group.pending[0]
        part = Span(span.row, span.start, min(span.end, span.start + budget))
        if part.end == span.end:
            group.pending.pop(0)
        else:
            group.pending[0] = Span(span.row, part.end, span.end)
        builder.segment(group, group.table, part)
        self._counters.prefill_tokens += part.length
        return part.length
