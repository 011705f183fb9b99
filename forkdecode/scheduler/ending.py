"""How a group ends: what it returns, and where all that it held goes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from forkdecode.checks import told
from forkdecode.errors import CancelledError, CapacityError, ForkdecodeError, GroupFailedError
from forkdecode.scheduler.batching import Batcher
from forkdecode.scheduler.events import CandidateRecord, GroupFailed, GroupFinished
from forkdecode.scheduler.group import SequenceGroup
from forkdecode.scheduler.held_rows import HeldRows
from forkdecode.scheduler.keeping import hold_live, take_back
from forkdecode.scheduler.outcome import partial_records, records
from forkdecode.scheduler.planner import Planner
from forkdecode.scheduler.preemption import Preemptor
from forkdecode.scheduler.stats import Counters


class Endings:
    """Ends groups, and forgets them. groups: all that live, by request id."""

    def __init__(
        self,
        groups: dict[str, SequenceGroup],
        batcher: Batcher,
        planner: Planner,
        preemptor: Preemptor,
        held: HeldRows,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self._groups = groups
        self._batcher = batcher
        self._planner = planner
        self._preemptor = preemptor
        self._held = held
        self._counters = counters
        self._clock = clock

    def finish(self, group: SequenceGroup) -> GroupFinished:
        """Its policy has what it was asked for."""
        found = records(group, group.policy.results())
        take_back(group, {candidate.index for candidate in found}, self._held)
        self._release(group)
        self._counters.finished_groups += 1
        self._counters.generated_tokens += group.costs.generated_tokens
        longest = max((len(c.token_ids) for c in found), default=0)
        usage = group.costs.usage(group.request.prompt_len, longest, self._clock())
        return GroupFinished(group.request_id, found, usage, group.policy.exhausted)

    def fail(self, group: SequenceGroup, error: ForkdecodeError) -> GroupFailed:
        """It can't go on, or is not to."""
        found: tuple[CandidateRecord, ...] = ()
        if isinstance(error, (CapacityError, CancelledError)):
            found = partial_records(group)
            hold_live(group, self._held)
        kept = take_back(group, {candidate.index for candidate in found}, self._held)
        table = group.table
        if table is not None:
            blocks = np.unique(table.references())
            self._release(group)
            # They may hold NaN, and a masked slot still takes part in a sum as 0 * NaN.
            self._planner.moves.zero_blocks.append(blocks[table.pool.ref_count[blocks] == 0])
        else:
            self._release(group)
        self._counters.failed_groups += 1
        self._counters.generated_tokens += group.costs.generated_tokens
        usage = group.costs.usage(group.request.prompt_len, group.rows.generated, self._clock())
        return GroupFailed(group.request_id, error, found, usage, kept)

    def fail_by(self, what: str, cause: Exception, group: SequenceGroup) -> GroupFailed:
        """Something else failed. Its caller gets no error object that another group's caller has too."""
        error = GroupFailedError(f"{what}: {told(cause)}", request_id=group.request_id)
        error.__cause__ = cause
        return self.fail(group, error)

    def _release(self, group: SequenceGroup) -> None:
        if group.table is not None:
            group.table.release()
            group.table = None
        self._preemptor.drop(group, self._planner.moves)
        self._batcher.remove(group)
        self._held.released.leave(group.request)
        del self._groups[group.request_id]
