"""Letting groups in: by the unique blocks that they need, the next step's worst case included."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from forkdecode.kv.block_pool import BlockPool
from forkdecode.kv.block_table import BlockTable
from forkdecode.kv.held_row import HeldRow
from forkdecode.kv.prefix_cache import PrefixCache
from forkdecode.scheduler.group import SequenceGroup, Span
from forkdecode.scheduler.held_rows import Beginning, HeldRows
from forkdecode.scheduler.plan import Moves
from forkdecode.scheduler.preemption import Preemptor
from forkdecode.scheduler.request import NodeRef, Share
from forkdecode.scheduler.stats import Counters
from forkdecode.step import I64, BlockMoves


class Admission:
    """Decides whether a waiting group fits now, and gives it its table."""

    def __init__(
        self,
        pool: BlockPool,
        cache: PrefixCache | None,
        held: HeldRows,
        preemptor: Preemptor,
        counters: Counters,
        watermark: float,
    ) -> None:
        self._pool = pool
        self._cache = cache
        self._held = held
        self._preemptor = preemptor
        self._counters = counters
        self._reserve = int(pool.num_blocks * watermark)

    def follows(self, group: SequenceGroup, running: Sequence[SequenceGroup]) -> bool:
        """Whether a group that begins at a node better waits: a running group of its tree, of higher rank,
        computes a prompt that begins like its own, for at least a block more than it would begin with.
        Once that is computed the group's node gets it. A leader is never one that waits, so some group
        always computes."""
        ref = group.request.origin
        assert ref is not None, "only asked of a group that begins at a node"
        if group.leader is not None:
            leader, common = group.leader
            if leader in running and not leader.prompt_done:
                return True
            group.leader = None
            source = leader.request.origin
            if source is not None and not self._held.released.for_group(group.number, ref):
                self._held.obey(Share(source, (ref,), common))
        if group.parked is not None:
            return False
        for other in running:
            if other.prompt_done or not _same_tree(other, ref) or other.rank > group.rank:
                continue
            common = common_length(other.request.prompt[:-1], group.request.prompt[:-1])
            if common - self._had(group) >= self._pool.block_size:
                group.leader = (other, common)
                return True
        return False

    def _had(self, group: SequenceGroup) -> int:
        """Tokens of its prompt that a group would begin with."""
        request, size = group.request, self._pool.block_size
        cached = 0
        if self._cache is not None:
            full = (request.prompt_len - 1) // size
            cached = len(self._cache.match(request.prompt, request.options.cache_salt, full)) * size
        return max(cached, self._held.there(request.origin))

    def admit(self, group: SequenceGroup, running: Sequence[SequenceGroup], ahead: int, moves: Moves) -> bool:
        """Gives `group` its blocks if they fit; it changes nothing otherwise. ahead: the most that the next
        step of all `running` groups can need.

        Counted against the blocks that are free or only cached: what the group takes now, the
        cached blocks that it will share (they stop being evictable), its own next two steps, the
        next step of every running group, and the watermark. Alone, a group needs only the first two.
        Rows that nodes hold make room if that is enough for the group; its own node's too where no other
        group runs, for then nobody else will make any.
        """
        if ahead:
            ahead += group.num_rows + group.next_rows_bound + self._reserve
        while True:
            beginning = self._beginning(group)
            short = self._taken(group, beginning) + ahead - self._pool.num_available
            if short <= 0:
                break
            busy = self._spared(group, running)
            if self._held.reclaimable(busy) < short or not self._held.reclaim(short, busy, moves):
                return False
        self._enter(group, beginning, moves)
        return True

    def _spared(self, group: SequenceGroup, running: Sequence[SequenceGroup]) -> frozenset[NodeRef]:
        """Nodes whose rows stay for now. The group's own may hold blocks that it can't begin with: behind one
        that is lost, or all of them where the group comes back from the host."""
        swapped = group.parked is not None and group.parked.host_slots is not None
        return origins([*running, group] if running and not swapped else running)

    def _beginning(self, group: SequenceGroup) -> Beginning:
        """Of a group that comes back by recompute, what it needs of its prompt; nothing for one that is
        swapped in."""
        request, size = group.request, self._pool.block_size
        needed = request.prompt_len - 1
        parked = group.parked
        if parked is not None:
            full = 0 if parked.host_slots is not None else min(parked.image.num_trunk, needed // size)
            needed = full * size
        cached = np.empty(0, np.int32)
        if self._cache is not None and needed:
            cached = self._cache.match(request.prompt, request.options.cache_salt, needed // size)
        if parked is None:
            return self._held.beginning(request.origin, needed, cached)
        return self._held.in_pool(request.origin, needed, cached)

    def _taken(self, group: SequenceGroup, beginning: Beginning) -> int:
        """Blocks that are available now and won't be when the group has entered."""
        here = beginning.blocks[beginning.blocks >= 0]
        # What the group hits is no longer there to be evicted for its sake.
        hits = int(np.count_nonzero((self._pool.ref_count[here] == 1) & self._pool.cached[here]))
        if group.parked is not None:
            return group.parked.image.num_unique - len(here) + hits
        computed, size = group.request.prompt_len - 1, self._pool.block_size
        copied = beginning.length < computed and beginning.length % size and beginning.blocks[-1] >= 0
        return -(-computed // size) - len(here) + hits + bool(copied)

    def _enter(self, group: SequenceGroup, beginning: Beginning, moves: Moves) -> None:
        if group.parked is not None:
            self._preemptor.resume(group, beginning.blocks, moves)
            return
        computed = group.request.prompt_len - 1
        fetched = self._fetched(group, beginning, moves)
        table = BlockTable.from_held(self._pool, fetched)
        fetched.release()
        group.table = table
        group.costs.cached_tokens = table.length
        self._counters.rebuilt_tokens += beginning.lost
        if table.length < computed:
            group.pending = [Span(0, table.length, computed)]
            copies = table.extend(computed - table.length).copies
            if len(copies):
                # The group has something to compute, so the step that makes the copies does run.
                moves.copies.append(copies)
                moves.swapped.append(group)
                group.costs.copies += len(copies)
                self._counters.copies += len(copies)

    def _fetched(self, group: SequenceGroup, beginning: Beginning, moves: Moves) -> HeldRow:
        """The row that the group begins with, all of it in the pool."""
        blocks = beginning.blocks.copy()
        absent = blocks < 0
        self._pool.retain(blocks[~absent])  # before allocating, so that they are not evicted for it
        blocks[absent] = self._pool.allocate(len(beginning.slots))
        if len(beginning.slots):
            self._preemptor.swap_in(group, BlockMoves(beginning.slots, blocks[absent]), moves)
        return HeldRow(blocks, beginning.length, self._pool)


def _same_tree(group: SequenceGroup, ref: NodeRef) -> bool:
    origin = group.request.origin
    return origin is not None and origin.tree == ref.tree


def common_length(one: I64, other: I64) -> int:
    """How many of the first tokens are the same."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length


def origins(groups: Iterable[SequenceGroup]) -> frozenset[NodeRef]:
    """The nodes that they begin from."""
    return frozenset(g.request.origin for g in groups if g.request.origin is not None)
