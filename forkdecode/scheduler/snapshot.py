"""What an engine tells of itself between two steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from forkdecode.kv.block_pool import BlockPool
from forkdecode.results import EngineStats
from forkdecode.scheduler.group import SequenceGroup
from forkdecode.scheduler.held_rows import HeldRows
from forkdecode.scheduler.stats import Counters


def snapshot(
    sums: Counters,
    pool: BlockPool,
    held: HeldRows,
    running: Sequence[SequenceGroup],
    waiting: int,
    groups: Iterable[SequenceGroup],
) -> EngineStats:
    """How things stand between two steps. waiting: how many groups do; groups: all of them."""
    return EngineStats(
        steps=sums.steps,
        running_groups=len(running),
        waiting_groups=waiting,
        running_rows=sum(g.num_rows for g in running),
        total_blocks=pool.num_blocks,
        free_blocks=pool.num_free,
        used_blocks=pool.num_blocks - pool.num_available,
        shared_blocks=int(np.count_nonzero(pool.ref_count > 1)),
        cached_blocks=pool.num_evictable,
        unique_block_steps=sums.unique_block_steps,
        unshared_block_steps=sums.unshared_block_steps,
        wasted_slot_steps=sums.wasted_slot_steps,
        block_size=pool.block_size,
        copies=sums.copies,
        preemptions=sums.preemptions,
        swapped_blocks=sums.swapped_blocks,
        recomputed_tokens=sums.recomputed_tokens,
        prefill_tokens=sums.prefill_tokens,
        cached_prompt_tokens=sums.cached_prompt_tokens,
        generated_tokens=sums.generated_tokens + sum(g.costs.generated_tokens for g in groups),
        finished_groups=sums.finished_groups,
        failed_groups=sums.failed_groups,
        decoded_rows=sums.decoded_rows,
        steps_by_rows=tuple(sums.steps_by_rows),
        held_nodes=len(held),
        held_blocks=held.num_blocks,
        swapped_nodes=sums.swapped_nodes,
        dropped_nodes=sums.dropped_nodes,
        rebuilt_tokens=sums.rebuilt_tokens,
        naive_kv_bytes=float(sums.moved.naive),
        paged_kv_bytes=float(sums.moved.paged),
        forest_kv_bytes=float(sums.moved.forest),
    )
