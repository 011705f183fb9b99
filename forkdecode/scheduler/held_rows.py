"""What the nodes of trees hold: rows at rest, which make room for whatever runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from forkdecode.kv.block_pool import BlockPool
from forkdecode.kv.held_blocks import NOWHERE, HeldBlocks
from forkdecode.kv.swap import HostPool
from forkdecode.scheduler.plan import Moves
from forkdecode.scheduler.released import ReleasedNodes
from forkdecode.scheduler.request import NodeRef, Release, Share, TreeOp
from forkdecode.scheduler.stats import Counters
from forkdecode.step import I32, Bools


@dataclass(slots=True, eq=False)
class _Row:
    """KV of the first `length` tokens of a node's path. handles [ceil(length / S)]. live: it has not been
    settled since it was last used (see HeldBlocks)."""

    handles: I32
    length: int
    live: bool = True


@dataclass(frozen=True, slots=True)
class Beginning:
    """What of a path is to be had without computing it: `length` tokens. blocks [ceil(length / S)]: in
    the pool; NOWHERE for those in `slots` of the host. lost: tokens beyond that the node once held.
    """

    blocks: I32
    slots: I32
    length: int
    lost: int


class HeldRows:
    """Rows by node. At any time a node may hold less than it did: what needs it computes it again.

    Under pressure the row unused longest goes first: to the host if `swaps`, as long as there is room,
    else nowhere. What the prefix cache has of it stays there until it is evicted. A block goes when all
    rows that share it have gone.
    """

    def __init__(self, pool: BlockPool, host: HostPool, swaps: bool, counters: Counters) -> None:
        self._pool = pool
        self._host = host
        self._blocks = HeldBlocks(pool, host)
        self._swaps = swaps
        self._counters = counters
        self._rows: dict[NodeRef, _Row] = {}
        """All, the one unused longest first."""
        self._live: dict[NodeRef, None] = {}
        """Of the rows that are live, in the same order."""
        self._trees: dict[str, set[int]] = {}
        self.released = ReleasedNodes()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool that nobody else holds."""
        return int(np.count_nonzero(self._blocks.alone(self._blocks.in_pool())))

    def references(self) -> I32:
        """One entry for each reference held on a block of the pool."""
        return self._blocks.references()

    def rows(self) -> Iterator[tuple[NodeRef, I32]]:
        """Each node that holds something, and the blocks of its row; NOWHERE for those not in the pool."""
        for ref, row in self._rows.items():
            yield ref, self._blocks.block[row.handles]

    # -- commands ---------------------------------------------------------------------------------

    def obey(self, op: TreeOp) -> None:
        """Carries out an operation on trees."""
        if isinstance(op, Share):
            self._share(op)
        else:
            self._release(op)

    def _share(self, op: Share) -> None:
        source = self._use(op.source)
        if source is None:
            return
        length = min(op.length, source.length)
        handles = source.handles[: self._columns(length)]
        for target in op.targets:
            old = self._rows.get(target)
            if target != op.source and length > (0 if old is None else old.length):
                self._blocks.join(handles)
                self._forget(target)
                self._put(target, _Row(handles.copy(), length))

    def _release(self, op: Release) -> None:
        nodes = self._trees.get(op.tree, ()) if op.nodes is None else op.nodes
        for node in sorted(nodes, reverse=True):
            self._forget(NodeRef(op.tree, node))
        self.released.add(op)

    # -- groups -----------------------------------------------------------------------------------

    def beginning(self, ref: NodeRef | None, computed: int, cached: I32) -> Beginning:
        """What a group whose prompt is the node's path begins with, of the `computed` tokens it needs.
        cached: the full blocks of the path in the prefix cache. Counts as use of the node."""
        size = self._pool.block_size
        row = None if ref is None else self._use(ref, computed)
        held = 0 if row is None else row.length
        handles = np.empty(0, np.int32) if row is None else row.handles
        if held <= len(cached) * size:
            handles = handles[: held // size]  # a last block that is full in the cache only
        blocks = self._in_pool(handles, cached)
        slots = np.full(len(blocks), NOWHERE, np.int32)
        slots[: len(handles)] = self._blocks.slot[handles]
        slots[blocks >= 0] = NOWHERE
        usable = _leading((blocks >= 0) | (slots >= 0))
        length = min(usable * size, max(held, len(cached) * size))
        slots = slots[:usable]
        return Beginning(blocks[:usable], slots[slots >= 0], length, max(0, held - length))

    def there(self, ref: NodeRef | None) -> int:
        """Tokens of the node's row that need not be computed. Not a use of it."""
        row = None if ref is None else self._rows.get(ref)
        if row is None:
            return 0
        found = (self._blocks.block[row.handles] >= 0) | (self._blocks.slot[row.handles] >= 0)
        return min(row.length, _leading(found) * self._pool.block_size)

    def in_pool(self, ref: NodeRef | None, computed: int, cached: I32) -> Beginning:
        """The same of what is in the pool, in full blocks."""
        size = self._pool.block_size
        row = None if ref is None or not computed else self._use(ref)
        handles = np.empty(0, np.int32)
        if row is not None:
            handles = row.handles[: min(computed, row.length) // size]
        blocks = self._in_pool(handles, cached)
        blocks = blocks[: _leading(blocks >= 0)]
        return Beginning(blocks, np.empty(0, np.int32), len(blocks) * size, 0)

    def _in_pool(self, handles: I32, cached: I32) -> I32:
        """Where the pool has the leading blocks of a path, by a row or the cache."""
        blocks = np.full(max(len(handles), len(cached)), NOWHERE, np.int32)
        blocks[: len(cached)] = cached
        here = self._blocks.block[handles]
        found = np.flatnonzero(here >= 0)
        blocks[found] = here[found]
        return blocks

    def hold(self, ref: NodeRef, blocks: I32, length: int, group: int) -> None:
        """The node holds the first `length` tokens of its path, which the group of that number has
        computed into `blocks`, unless it was released since the group came. What it holds in the pool
        already stays as it is."""
        if length < 1 or self.released.for_group(group, ref):
            return
        old = self._rows.get(ref)
        if old is not None and old.length >= length and (self._blocks.block[old.handles] >= 0).all():
            self._use(ref)
            return
        blocks = self._own(blocks[: self._columns(length)], old, length)
        handles = self._blocks.hold(blocks)
        self._forget(ref)
        self._put(ref, _Row(handles, length))

    def _own(self, blocks: I32, old: _Row | None, length: int) -> I32:
        """The blocks, or those with the same content that the node's row has in the pool. Where the row
        has lost one that is full, all rows that share it find it again in its new place."""
        if old is None:
            return blocks
        blocks, size = blocks.copy(), self._pool.block_size
        for i, handle in enumerate(old.handles[: len(blocks)].tolist()):
            if min((i + 1) * size, length) > old.length:
                break
            if self._blocks.block[handle] >= 0:
                blocks[i] = self._blocks.block[handle]
            elif (i + 1) * size <= length and self._blocks.handle_of(int(blocks[i])) == NOWHERE:
                self._blocks.bind(np.array([handle], np.int32), blocks[i : i + 1])
        return blocks

    def drop(self, ref: NodeRef) -> None:
        """The node holds nothing any more."""
        self._forget(ref)

    def lose_all(self) -> None:
        """All nodes' keys and values are nowhere any more; their rows stay, to be computed again."""
        self._blocks.lose(np.union1d(self._blocks.in_pool(), self._blocks.in_host()))

    # -- pressure ---------------------------------------------------------------------------------

    def reclaimable(self, busy: Collection[NodeRef]) -> int:
        """Blocks that return to the pool if all rows but those of `busy` go."""
        handles = self._blocks.in_pool()
        if not len(handles):
            return 0
        kept = [self._rows[ref].handles for ref in busy if ref in self._live]
        alone = self._blocks.alone(handles)
        alone[np.isin(handles, np.concatenate([np.empty(0, np.int32), *kept]))] = False
        return int(np.count_nonzero(alone))

    def reclaim(self, needed: int, busy: Collection[NodeRef], moves: Moves) -> bool:
        """Makes `needed` more blocks available, or as many as there are; whether any came back.
        busy: nodes whose rows stay."""
        before = self._pool.num_available
        goal = before + needed
        self._put_away(self._blocks.idle(self._blocks.in_pool()), moves)
        for ref in tuple(self._live):
            if self._pool.num_available >= goal:
                break
            if ref not in busy:
                self._settle(ref, moves)
        return self._pool.num_available > before

    def give_slots(self, needed: int) -> bool:
        """Loses rows in host memory until `needed` slots are free; changes nothing if it can't."""
        short = needed - self._host.num_free
        if short <= 0:
            return True
        if len(self._blocks.idle_in_host(self._blocks.in_host())) < short:
            return False
        for row in self._rows.values():
            lost = self._blocks.idle_in_host(row.handles)
            if len(lost):
                self._blocks.lose(lost)
                self._counters.dropped_nodes += 1
                if self._host.num_free >= needed:
                    break
        return True

    def _settle(self, ref: NodeRef, moves: Moves) -> None:
        row = self._rows[ref]
        del self._live[ref]
        row.live = False
        self._blocks.settle(row.handles)
        swapped, lost = self._put_away(self._blocks.idle(row.handles), moves)
        self._counters.swapped_nodes += swapped > 0
        self._counters.dropped_nodes += lost > 0

    def _put_away(self, handles: I32, moves: Moves) -> tuple[int, int]:
        """Handles in the order of their row: what comes first is of use without the rest."""
        room = min(len(handles), self._host.num_free) if self._swaps else 0
        if room:
            moves.swap_out.append(self._blocks.to_host(handles[:room]))
            self._counters.swapped_blocks += room
        if room < len(handles):
            self._blocks.lose(handles[room:])
        return room, len(handles) - room

    # -- steps ------------------------------------------------------------------------------------

    def moved(self) -> None:
        """The step that was planned with the moves has run."""
        self._blocks.moved()

    def failed(self) -> None:
        """It has failed: what it was to move to the host is lost."""
        self._blocks.failed()

    # -- rows -------------------------------------------------------------------------------------

    def _use(self, ref: NodeRef, most: int | None = None) -> _Row | None:
        """The node's row, of at most `most` tokens from now on."""
        row = self._rows.get(ref)
        if row is None or most == 0:
            self._forget(ref)
            return None
        if most is not None and row.length > most:
            self._cut(row, most)
        del self._rows[ref]
        self._rows[ref] = row
        if row.live:
            del self._live[ref]
        else:
            row.live = True
            self._blocks.revive(row.handles)
        self._live[ref] = None
        return row

    def _put(self, ref: NodeRef, row: _Row) -> None:
        self._rows[ref] = row
        self._live[ref] = None
        self._trees.setdefault(ref.tree, set()).add(ref.node)

    def _forget(self, ref: NodeRef) -> None:
        row = self._rows.pop(ref, None)
        if row is None:
            return
        self._live.pop(ref, None)
        self._blocks.leave(row.handles, row.live)
        nodes = self._trees[ref.tree]
        nodes.discard(ref.node)
        if not nodes:
            del self._trees[ref.tree]

    def _cut(self, row: _Row, length: int) -> None:
        columns = self._columns(length)
        self._blocks.leave(row.handles[columns:], row.live)
        row.handles, row.length = row.handles[:columns].copy(), length

    def _columns(self, length: int) -> int:
        return -(-length // self._pool.block_size)


def _leading(there: Bools) -> int:
    """How many of the first are there without a gap."""
    return len(there) if there.all() else int(there.argmin())
