"""The step after the one that runs, planned before anybody knows what that one chooses.

Samples go on in their places whatever they draw, unless they end. So where a step is all samples, the next
one's rows, positions, slots and draws are known; its tokens are on the device, which takes them from there
(StepPlan.token_source). A row that turns out to have ended has been computed for nothing, and nobody sees it:
it writes to blocks that are its own until its group lets go of them, and who gets them next writes later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from forkdecode.kv.table_batch import room_for_all
from forkdecode.scheduler.extending import extend_groups
from forkdecode.scheduler.group import SequenceGroup
from forkdecode.scheduler.plan import PlanBuilder
from forkdecode.scheduler.stats import Counters
from forkdecode.step import Draw, SelectionRequest


def fill_ahead(
    builder: PlanBuilder, running: PlanBuilder, groups: Sequence[SequenceGroup], counters: Counters
) -> bool:
    """Plans the step after `running`, which has not been committed, if it is known. groups: all that have a
    table. False, with nothing done, if it is not."""
    if running.segment_tokens or len(running.groups) != len(running.touched):
        return False
    there = {group.number for group in groups}
    if there - {group.number for group in running.groups}:
        return False
    pairs = [(g, s) for g, s in zip(running.groups, running.selections, strict=True) if g.number in there]
    if not all(_draws_on(g, s) for g, s in pairs):
        return False
    pairs = [(g, s) for g, s in pairs if g.rows.generated + 1 < g.request.options.max_tokens]
    tables = [g.table for g, _ in pairs if g.table is not None]
    if not pairs or not room_for_all(tables):
        return False
    row, selections, sources = 0, [], []
    for group, selection in pairs:
        rows = replace(group.rows, generated=group.rows.generated + 1, position=group.rows.position + 1)
        selections.append(group.selection_request(row, rows))
        left = running.left.get(group.number, np.arange(rows.num_rows, dtype=np.int32))
        sources.append(selection.logits_start + left.astype(np.int64))
        row += rows.num_rows
    going = [group for group, _ in pairs]
    extended = extend_groups(going, tables, builder.step, counters)
    builder.decode_ahead(going, tables, extended, selections, sources)
    return True


def _draws_on(group: SequenceGroup, selection: SelectionRequest) -> bool:
    """Whether the group's rows stay where they are until they end, and what they draw from depends on nothing
    but how many tokens there are."""
    return (
        isinstance(selection.choice, Draw)
        and group.plain
        and group.prompt_done
        and group.rows.generated > 0
        and not group.request.processors.reads_history
        and not group.pending
    )
