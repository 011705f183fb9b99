"""Letting groups in: by the unique blocks that they need, the next step's worst case included."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from forkdecode.kv.block_pool import BlockPool
from forkdecode.kv.block_table import BlockTable
from forkdecode.kv.prefix_cache import PrefixCache
from forkdecode.scheduler.group import SequenceGroup, Span
from forkdecode.scheduler.plan import Moves
from forkdecode.scheduler.preemption import Preemptor
from forkdecode.step import I32


class Admission:
    """Decides whether a waiting group fits now, and gives it its table."""

    def __init__(
        self, pool: BlockPool, cache: PrefixCache | None, preemptor: Preemptor, watermark: float
    ) -> None:
        self._pool = pool
        self._cache = cache
        self._preemptor = preemptor
        self._reserve = int(pool.num_blocks * watermark)

    def admit(self, group: SequenceGroup, running: Iterable[SequenceGroup], moves: Moves) -> bool:
        """Gives `group` its blocks if they fit; changes nothing otherwise.

        Counted against the blocks that are free or only cached: what the group takes now, the
        cached blocks that it will share (they stop being evictable), its own next two steps, the
        next step of every running group, and the watermark. Alone, a group needs only the first two.
        """
        blocks, cached = self._needs(group)
        # What the group hits is no longer there to be evicted for its sake.
        taken = blocks + int(np.count_nonzero(self._pool.ref_count[cached] == 1))
        ahead = sum(other.next_rows_bound for other in running)
        if ahead:
            ahead += group.num_rows + group.next_rows_bound + self._reserve
        if taken + ahead > self._pool.num_available:
            return False
        self._enter(group, cached, moves)
        return True

    def _needs(self, group: SequenceGroup) -> tuple[int, I32]:
        if group.parked is not None:
            return self._preemptor.blocks_to_resume(group)
        size, computed = self._pool.block_size, group.request.prompt_len - 1
        cached = np.empty(0, np.int32)
        if self._cache is not None:
            cached = self._cache.match(
                group.request.prompt, group.request.options.cache_salt, computed // size
            )
        return -(-computed // size) - len(cached), cached

    def _enter(self, group: SequenceGroup, cached: I32, moves: Moves) -> None:
        if group.parked is not None:
            self._preemptor.resume(group, cached, moves)
            return
        computed = group.request.prompt_len - 1
        table = BlockTable.open(self._pool, cached)
        group.table = table
        group.costs.cached_tokens = table.length
        if table.length < computed:
            group.pending = [Span(0, table.length, computed)]
            table.extend(computed - table.length)
