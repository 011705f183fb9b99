"""Slots for the next token of many groups at once."""

from __future__ import annotations

from collections.abc import Sequence

from forkdecode.kv.block_table import BlockTable
from forkdecode.kv.table_batch import Extensions, count_all, extend_all
from forkdecode.scheduler.group import SequenceGroup
from forkdecode.scheduler.stats import Counters


def extend_groups(
    groups: Sequence[SequenceGroup], tables: Sequence[BlockTable], step: int, counters: Counters
) -> Extensions:
    """Extends the groups' tables by one token per row, for a step; there must be room_for_all of them."""
    extended = extend_all(tables)
    count_all(tables)
    counters.copies += len(extended.copies)
    for group, copies in zip(groups, extended.counts, strict=True):
        group.costs.copies += copies
        group.last_step = step
    return extended
