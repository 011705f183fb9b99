"""The running sums of an engine."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field

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

    def count_blocks(self, groups: Iterable[SequenceGroup], block_size: int) -> None:
        """Adds the blocks of those that compute in this step, as they stand while it runs."""
        for group in groups:
            table = group.table
            if table is None:
                continue
            unique, last = table.counts()
            unshared = table.num_unshared
            group.costs.count_blocks(unshared, unique)
            self.unique_block_steps += unique
            self.unshared_block_steps += unshared
            self.wasted_slot_steps += last * (-table.length % block_size)
