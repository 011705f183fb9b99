"""The step after the one that runs, planned before anybody knows what that one chooses.

Samples go on in their places whatever they draw, unless they end. So where a step is all samples, the next
one's rows, positions, slots and draws are known; its tokens are on the device, which takes them from there
(StepPlan.token_source). A row that turns out to have ended has been computed for nothing, and nobody sees it:
it writes to blocks that are its own until its group lets go of them, and who gets them next writes later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from forkdecode.kv.block_table import BlockTable
from forkdecode.kv.table_batch import room_for_all
from forkdecode.scheduler.extending import extend_groups
from forkdecode.scheduler.group import SequenceGroup
from forkdecode.scheduler.plan import PlanBuilder
from forkdecode.scheduler.stats import Counters
from forkdecode.step import I32, Draw, SelectionRequest

Drawing: TypeAlias = tuple[SequenceGroup, SelectionRequest]
"""A group, and what it draws in the step that runs."""


def known_ahead(running: PlanBuilder, groups: Sequence[SequenceGroup]) -> list[Drawing]:
    """Of the step after `running`, which has not been committed: whose rows compute in it. None of them where
    the step is not known. groups: all that have a table."""
    if running.segment_tokens or len(running.groups) != len(running.touched):
        return []
    there = {group.number for group in groups}
    if there - {group.number for group in running.groups}:
        return []
    drawing = [(g, s) for g, s in zip(running.groups, running.selections, strict=True) if g.number in there]
    if not all(_draws_on(g, s) for g, s in drawing):
        return []
    going = [(g, s) for g, s in drawing if g.rows.generated + 1 < g.request.options.max_tokens]
    return going if going and room_for_all(_tables(going)) else []


def fill_ahead(
    builder: PlanBuilder, going: Sequence[Drawing], left: Mapping[int, I32], counters: Counters
) -> None:
    """Plans the step that known_ahead knows. left: see PlanBuilder, of the step that runs."""
    row, selections, sources = 0, [], []
    for group, selection in going:
        rows = replace(group.rows, generated=group.rows.generated + 1, position=group.rows.position + 1)
        selections.append(group.selection_request(row, rows))
        drawn = left.get(group.number, np.arange(rows.num_rows, dtype=np.int32))
        sources.append(selection.logits_start + drawn.astype(np.int64))
        row += rows.num_rows
    groups, tables = [group for group, _ in going], _tables(going)
    extended = extend_groups(groups, tables, builder.step, counters)
    builder.decode_ahead(groups, tables, extended, selections, sources)


def _tables(going: Sequence[Drawing]) -> list[BlockTable]:
    return [group.table for group, _ in going if group.table is not None]


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
