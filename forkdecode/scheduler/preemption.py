"""Taking a whole group out of the block pool, and putting it back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forkdecode.config import Preemption
from forkdecode.kv.block_pool import BlockPool
from forkdecode.kv.block_table import BlockTable
from forkdecode.kv.prefix_cache import PrefixCache
from forkdecode.kv.swap import HostPool
from forkdecode.scheduler.group import Parked, SequenceGroup, Span
from forkdecode.scheduler.plan import Moves
from forkdecode.step import I32, BlockMoves


@dataclass(frozen=True, slots=True)
class PreemptionCost:
    """What recompute and swap cost, in the same unit.

    recompute_per_token: FLOPs, two for each weight. swap_per_block: the FLOPs that the device could
    do while one block goes out and comes back.
    """

    recompute_per_token: float
    swap_per_block: float

    @staticmethod
    def of(weights: int, bytes_per_block: int, flops_per_byte: float) -> PreemptionCost:
        """weights: number of parameters. flops_per_byte: FLOPs done in the time that one byte takes
        between device and host."""
        return PreemptionCost(2.0 * weights, 2.0 * bytes_per_block * flops_per_byte)


class Preemptor:
    """Parks groups (recompute or swap, whichever costs less or is forced) and resumes them."""

    def __init__(
        self,
        mode: Preemption,
        cost: PreemptionCost,
        pool: BlockPool,
        host: HostPool,
        cache: PrefixCache | None,
    ) -> None:
        self._mode = mode
        self._cost = cost
        self._pool = pool
        self._host = host
        self._cache = cache
        self._read_slots: list[I32] = []

    def park(self, group: SequenceGroup, moves: Moves) -> int:
        """Frees all of the group's blocks. Returns how many were swapped out."""
        table = group.table
        assert table is not None, "a parked group cannot be parked again"
        image = table.image()
        slots: I32 | None = None
        if self._swaps(group, image.num_unique):
            slots = self._host.allocate(image.num_unique)
            moves.swap_out.append(BlockMoves(image.unique_old, slots))
            moves.swapped.append(group)
        table.release()
        group.table = None
        group.parked = Parked(image, slots, tuple(group.pending))
        group.pending = []
        group.costs.preemptions += 1
        swapped = 0 if slots is None else len(slots)
        group.costs.swapped_blocks += swapped
        return swapped

    def _swaps(self, group: SequenceGroup, blocks: int) -> bool:
        if self._mode == "recompute" or blocks > self._host.num_free or not blocks:
            return False
        tokens = blocks * self._pool.block_size - sum(span.length for span in group.pending)
        cheaper = blocks * self._cost.swap_per_block < tokens * self._cost.recompute_per_token
        return self._mode == "swap" or cheaper

    def blocks_to_resume(self, group: SequenceGroup) -> tuple[int, I32]:
        """New blocks that resume() will take, and the cached blocks that it will share."""
        parked = group.parked
        assert parked is not None
        cached = np.empty(0, np.int32)
        if parked.host_slots is None and self._cache is not None:
            limit = min(parked.image.num_trunk, (group.request.prompt_len - 1) // self._pool.block_size)
            salt = group.request.options.cache_salt
            cached = self._cache.match(group.request.prompt, salt, limit)
        return parked.image.num_unique - len(cached), cached

    def resume(self, group: SequenceGroup, cached: I32, moves: Moves) -> int:
        """Gives a parked group blocks again; `cached` as blocks_to_resume() said. Returns how many
        tokens are to be computed again."""
        parked = group.parked
        assert parked is not None
        group.table = BlockTable.restore(self._pool, parked.image, cached)
        group.parked = None
        if parked.host_slots is not None:
            moves.swap_in.append(BlockMoves(parked.host_slots, group.table.image().unique_old))
            moves.swapped.append(group)
            self._read_slots.append(parked.host_slots)
            group.pending = list(parked.pending)
            group.costs.swapped_blocks += len(parked.host_slots)
            return 0
        group.pending = [Span(*span) for span in parked.image.segments(len(cached))]
        tokens = sum(span.length for span in group.pending)
        group.costs.recomputed_tokens += tokens
        return tokens

    def drop(self, group: SequenceGroup) -> None:
        """Forgets a parked group that will not come back."""
        if group.parked is not None and group.parked.host_slots is not None:
            self._host.free(group.parked.host_slots)
        group.parked = None

    def step_done(self) -> None:
        """The step that read swapped-in slots has run: the slots may be used again."""
        for slots in self._read_slots:
            self._host.free(slots)
        self._read_slots.clear()
