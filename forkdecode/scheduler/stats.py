"""The running sums of an engine."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from forkdecode.kv.bytes_moved import NO_BYTES, BytesMoved
from forkdecode.results import BATCH_ROW_BOUNDS
from forkdecode.scheduler.group import SequenceGroup


@dataclass(slots=True)
class Counters:
    """The running sums behind EngineStats."""

    steps: int = 0
    unique_block_steps: int = 0
    unshared_block_steps: int = 0
    wasted_slot_steps: int = 0
    copies: int = 0
    preemptions: int = 0
    swapped_blocks: int = 0
    recomputed_tokens: int = 0
    prefill_tokens: int = 0
    swapped_nodes: int = 0
    dropped_nodes: int = 0
    rebuilt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    finished_groups: int = 0
    failed_groups: int = 0
    decoded_rows: int = 0
    moved: BytesMoved = NO_BYTES
    steps_by_rows: list[int] = field(default_factory=lambda: [0] * (len(BATCH_ROW_BOUNDS) + 1))

    def step_done(self, rows: int) -> None:
        """A step ran that decoded `rows` rows."""
        self.steps += 1
        self.decoded_rows += rows
        self.steps_by_rows[bisect.bisect_left(BATCH_ROW_BOUNDS, rows)] += 1

    def count_blocks(self, blocks: Iterable[StepBlocks]) -> None:
        """Adds those of a step that ran."""
        for one in blocks:
            one.group.costs.count_blocks(one.unshared, one.unique)
            self.unique_block_steps += one.unique
            self.unshared_block_steps += one.unshared
            self.wasted_slot_steps += one.wasted_slots


class StepBlocks(NamedTuple):
    """A group's blocks in one step: how many different ones, how many if its rows shared none, and slots that
    no token fills."""

    group: SequenceGroup
    unique: int
    unshared: int
    wasted_slots: int


def step_blocks(groups: Iterable[SequenceGroup], block_size: int) -> list[StepBlocks]:
    """Those of groups that a step computes, whose tables have been extended for it."""
    found = []
    for group in groups:
        table = group.table
        if table is not None:
            unique, last = table.counts()
            wasted = last * (-table.length % block_size)
            found.append(StepBlocks(group, unique, table.num_unshared, wasted))
    return found
