"""The steps that are planned and not yet committed, and what is left to be moved before the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from forkdecode.kv.block_pool import BlockPool
from forkdecode.kv.step_reads import KvLayers, StepReads
from forkdecode.scheduler.ahead import fill_ahead, known_ahead
from forkdecode.scheduler.batching import Batcher
from forkdecode.scheduler.plan import Moves, PlanBuilder
from forkdecode.scheduler.stats import Counters, step_blocks
from forkdecode.step import I32, StepPlan


class Planner:
    """Numbers the steps and keeps them, in order, until they are over. moves: for the next step."""

    def __init__(self, pool: BlockPool, batcher: Batcher, counters: Counters, layers: KvLayers) -> None:
        self.step = 0
        self.moves = Moves()
        self._pool = pool
        self._batcher = batcher
        self._counters = counters
        self._layers = layers
        self._planned: deque[PlanBuilder] = deque()

    @property
    def has_planned(self) -> bool:
        """Whether a step is to be committed."""
        return bool(self._planned)

    def plan(self) -> tuple[StepPlan | None, PlanBuilder]:
        """The next step, None when nothing can run, and what was thought of it."""
        self.step += 1
        builder = self._builder(self.moves)
        self._batcher.fill(builder)
        plan = builder.build()
        if plan is not None:
            self.moves = Moves()
            self._keep(builder)
        return plan, builder

    def plan_ahead(self) -> StepPlan | None:
        """The step after the one that is planned, but for its tokens: see scheduler.ahead. None where it is
        not known, or something else is to be done first."""
        [running] = self._planned
        if self.moves or not self._batcher.stands_still(self.step):
            return None
        going = known_ahead(running, self._batcher.running)
        if not going:
            return None
        self.step += 1
        builder = self._builder(Moves())
        fill_ahead(builder, going, running.left, self._counters)
        self._keep(builder)
        return builder.build()

    def _builder(self, moves: Moves) -> PlanBuilder:
        self._pool.begin_step()
        reads = StepReads(self._layers, self._pool.block_size)
        return PlanBuilder(self.step, self._pool.block_size, moves, reads)

    def _keep(self, builder: PlanBuilder) -> None:
        builder.blocks = step_blocks(builder.touched, self._pool.block_size)
        self._planned.append(builder)

    def end(self) -> PlanBuilder:
        """The step that is over. Raises RuntimeError where none was planned."""
        if not self._planned:
            raise RuntimeError("commit and abort need a schedule before them")
        builder = self._planned.popleft()
        # Its copies have run: an engine that goes idle now holds nothing for their sake.
        self._pool.begin_step()
        return builder

    def moved(self, parents: Mapping[int, I32]) -> None:
        """Of groups, by number, the rows that the present ones continue. A step that was planned before
        computes the former: its `left` says which of them go on."""
        for builder in self._planned:
            builder.left = parents
