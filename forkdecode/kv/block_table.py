"""One sequence group's block table: which blocks hold the KV of its rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forkdecode.kv.block_pool import BlockPool
from forkdecode.kv.copy_on_write import NO_COPIES, CopyOnWrite, copy_on_write
from forkdecode.kv.held_row import HeldRow
from forkdecode.kv.table_counts import children_of, different
from forkdecode.kv.table_image import TableImage
from forkdecode.step import I32, I64, BlockMoves

_NO_BLOCKS: I32 = np.empty(0, np.int32)
_NO_MOVES = BlockMoves.none()


@dataclass(frozen=True, slots=True)
class Extension:
    """What `BlockTable.extend` gave. slots [R, n]: of each row's new tokens (block * S + offset).
    copies: partial blocks to be copied before the step writes.
    """

    slots: I64
    copies: BlockMoves


class BlockTable:
    """The table of one group of R rows in lockstep: all rows have the same length.

    trunk [nt]: full blocks that every row shares, with one reference for the group. tails [R, C]:
    the rest of each row's table, with one reference an entry; a block that may still be written is
    always here. length: tokens with a slot, so that nt + C = ceil(length / S). Sharing is derived:
    rows share a block where their tables hold the same id. Arrays once handed out never change.

    A table without rows holds nothing: length 0 and no trunk.
    """

    __slots__ = ("_block_size", "_counted", "_num_trunk", "_trunk", "length", "pool", "tails")

    def __init__(self, pool: BlockPool) -> None:
        """An empty sequence: one row of length 0."""
        self.pool = pool
        self.length = 0
        self.tails: I32 = np.empty((1, 0), np.int32)
        self._block_size = pool.block_size
        self._trunk: I32 = _NO_BLOCKS
        self._num_trunk = 0
        self._counted: tuple[int, int] | None = None

    @staticmethod
    def open(pool: BlockPool, cached_blocks: I32 = _NO_BLOCKS) -> BlockTable:
        """One row that begins with these full blocks of the prefix cache; takes a reference each."""
        return BlockTable._of_row(pool, cached_blocks, len(cached_blocks) * pool.block_size)

    @staticmethod
    def from_held(pool: BlockPool, held: HeldRow) -> BlockTable:
        """One row that continues a held one; takes references of its own."""
        return BlockTable._of_row(pool, held.blocks, held.length)

    @staticmethod
    def _of_row(pool: BlockPool, blocks: I32, length: int) -> BlockTable:
        table = BlockTable(pool)
        pool.retain(blocks)
        full = length // pool.block_size
        table._set(blocks[:full].copy(), blocks[None, full:].copy(), length)
        return table

    @staticmethod
    def restore(pool: BlockPool, image: TableImage, cached: I32 = _NO_BLOCKS) -> BlockTable:
        """The table that `image` describes, on new blocks; `cached` are the leading trunk blocks
        found in the prefix cache. Raises OutOfBlocksError, having changed nothing.
        """
        if len(cached) > image.num_trunk:
            raise ValueError(f"cached: {len(cached)} blocks, the trunk has {image.num_trunk}")
        pool.retain(cached)  # before allocating, so that they are not evicted for it
        try:
            fresh = pool.allocate(image.num_unique - len(cached))
        except BaseException:
            pool.release(cached[::-1])
            raise
        unique = np.concatenate([cached, fresh])
        tails = unique[image.tails]
        pool.retain(tails)
        pool.release(unique[image.num_trunk :])  # the allocation's own reference
        table = BlockTable(pool)
        table._set(unique[: image.num_trunk], tails, image.length)
        return table

    @property
    def trunk(self) -> I32:
        """[nt]: the full blocks that every row shares."""
        return self._trunk[: self._num_trunk]

    @property
    def rows(self) -> int:
        return len(self.tails)

    @property
    def num_unique(self) -> int:
        """How many different blocks the rows hold together."""
        return self.counts()[0]

    @property
    def num_last(self) -> int:
        """How many different blocks the rows end in, of those in tails: the only ones that may have room."""
        return self.counts()[1]

    @property
    def uncounted(self) -> bool:
        """Whether several rows hold blocks in tails that would have to be counted now."""
        rows, columns = self.tails.shape
        return self._counted is None and rows > 1 and columns > 0

    def counted(self, unique: int, last: int) -> None:
        """Tells num_unique, of the blocks in tails, and num_last."""
        self._counted = self._num_trunk + unique, last

    def counts(self) -> tuple[int, int]:
        """num_unique and num_last."""
        if self._counted is None:
            unique, last = different(self.tails, self.pool.occurrences)
            self._counted = self._num_trunk + unique, last
        return self._counted

    @property
    def num_unshared(self) -> int:
        """How many blocks the rows would hold if they shared none: R * ceil(length / S)."""
        return self.rows * (self._num_trunk + int(self.tails.shape[1]))

    def row_blocks(self, row: int) -> I32:
        """[ceil(length / S)]: one row's whole table."""
        return np.concatenate([self.trunk, self.tails[row]])

    def references(self) -> I32:
        """One entry for each reference the table holds."""
        return np.concatenate([self.trunk, self.tails.ravel()])

    # -- growing ----------------------------------------------------------------------------------

    def blocks_needed(self, n: int) -> int:
        """How many blocks `extend(n)` would allocate now, copies included."""
        return self.rows * self.new_columns(n) + len(self._copy_on_write(n))

    def shortfall(self, n: int) -> int:
        """How many blocks `extend(n)` would want beyond those that the pool has available; 0 or less if it
        can be done. Of copies only as much is found out as matters."""
        free = self.pool.num_available
        most = self.rows * (self.new_columns(n) + 1) - free
        return most if most <= 0 else self.blocks_needed(n) - free

    def extend(self, n: int) -> Extension:
        """n new slots for every row; a shared partial block is copied first (copy-on-write).

        Of a partial block with c holders, m of them rows of this table, m copies are made, or
        m - 1 when c = m. Raises OutOfBlocksError, having changed nothing.
        """
        self.promote_single_row()
        cow, columns, rows = self._copy_on_write(n), self.new_columns(n), self.rows
        num_copies = len(cow)
        copies = _NO_MOVES
        if num_copies or (columns and rows):
            new = self.pool.allocate(num_copies + rows * columns)
            if num_copies:
                copies = self._copy(cow, new[:num_copies])
            if columns:
                self.add_columns(new[num_copies:].reshape(rows, columns))
        if not rows:
            return Extension(np.empty((0, n), np.int64), copies)
        slots = self._slots(n)
        self.length += n
        return Extension(slots, copies)

    def new_columns(self, n: int) -> int:
        """How many blocks each row begins for n more tokens."""
        return -(-(self.length + n) // self._block_size) - self._num_trunk - int(self.tails.shape[1])

    def _copy_on_write(self, n: int) -> CopyOnWrite:
        """The partial blocks that must be copied before n tokens are written."""
        if n == 0 or self.length % self._block_size == 0 or self._alone():
            return NO_COPIES
        return copy_on_write(self.pool, self.tails[:, -1])

    def _alone(self) -> bool:
        """Whether there is one row, and no other holder of its partial block: usual, so made cheap."""
        return len(self.tails) == 1 and bool(self.pool.ref_count[self.tails[0, -1]] == 1)

    def _copy(self, cow: CopyOnWrite, targets: I32) -> BlockMoves:
        """Give the rows of `cow` targets in place of their partial block."""
        if len(cow.foreign):
            # Their other holders may let go within this step.
            self.pool.protect(cow.foreign)
        self.pool.release(cow.sources)
        self.write_elsewhere(cow.rows, targets)
        return BlockMoves(cow.sources, targets)

    def write_elsewhere(self, rows: I64, targets: I32) -> None:
        """These rows' last blocks are `targets` from now on; counts are the caller's."""
        self.tails = self.tails.copy()
        self.tails[rows, -1] = targets
        self._counted = None

    def add_columns(self, blocks: I32) -> None:
        """Rows go on in `blocks` [R, n], each of which the caller has a reference on."""
        self.tails = np.concatenate([self.tails, blocks], axis=1)
        self._counted = None

    def _slots(self, n: int) -> I64:
        """[R, n]: slots of the positions length .. length + n - 1, whose columns exist."""
        size = self._block_size
        if n == 1:
            return self.tails[:, -1:].astype(np.int64) * size + self.length % size
        columns, offsets = np.divmod(np.arange(self.length, self.length + n), size)
        return self.tails[:, columns - self._num_trunk].astype(np.int64) * size + offsets

    # -- forking and pruning ----------------------------------------------------------------------

    def advance(self, parents: I32) -> None:
        """Row i becomes what row parents[i] was: repeats fork, gaps prune. parents [R'], R' >= 0.

        No KV moves. Only tails are touched, so that the cost does not depend on the prompt; then
        full blocks that all rows have come to share join the trunk. Raises ValueError on a parent
        out of range, having changed nothing.
        """
        self.promote_single_row()
        rows = self.rows
        if len(parents) == rows and (parents[0] == 0 if rows == 1 else _is_identity(parents)):
            return
        children = children_of(parents, rows)
        if not len(parents):
            self.release()
            return
        columns = self.tails.shape[1]
        if columns:
            change = (children - 1).astype(np.int32).repeat(columns)
            self.pool.recount(_deepest_first(self.tails), change[::-1])
        self.take_rows(parents)

    def take_rows(self, parents: I32) -> None:
        """Row i becomes what row parents[i] was; counts of tails are the caller's."""
        self.set_tails(self.tails.take(parents, axis=0))
        self.promote_common()

    def set_tails(self, tails: I32) -> None:
        """The rows' tails are these from now on, as many columns as before; counts are the caller's."""
        self.tails = tails
        self._counted = None

    def promote_single_row(self) -> None:
        """A single row shares all its full blocks with itself: before a fork, they cost nothing."""
        full = self.length // self._block_size - self._num_trunk
        if full and len(self.tails) == 1:
            self._promote(full)

    def promote_common(self) -> None:
        """Full blocks that all rows have come to share join the trunk."""
        full = self.length // self._block_size - self._num_trunk
        tails, rows, common = self.tails, self.rows, 0
        while common < full:
            block = tails[0, common]
            # Most steps end at the cheap look at the last row.
            if block != tails[-1, common] or not (tails[:, common] == block).all():
                break
            common += 1
        if not common:
            return
        if rows > 1:
            self.pool.release(tails[0, :common], np.full(common, rows - 1, np.int32))
        self._promote(common)

    def _promote(self, columns: int) -> None:
        """Move leading columns, equal in all rows, into the trunk; counts are the caller's."""
        end = self._num_trunk + columns
        if end > len(self._trunk):
            trunk = np.empty(max(8, 2 * end), np.int32)
            trunk[: self._num_trunk] = self.trunk
            self._trunk = trunk
        self._trunk[self._num_trunk : end] = self.tails[0, :columns]
        self._num_trunk = end
        self.tails = self.tails[:, columns:].copy()

    # -- holding and letting go -------------------------------------------------------------------

    def hold(self, row: int) -> HeldRow:
        """Keep a row beyond this table's life: references of its own. Raises IndexError."""
        if not 0 <= row < self.rows:
            raise IndexError(f"row: {row} is out of range; allowed: 0 to {self.rows - 1}")
        return HeldRow.of(self.pool, self.row_blocks(row), self.length)

    def truncate(self, num_tokens: int) -> None:
        """Cut every row to its first `num_tokens` tokens. Raises ValueError beyond the length."""
        if not 0 <= num_tokens <= self.length:
            raise ValueError(f"num_tokens: {num_tokens} is out of range; allowed: 0 to {self.length}")
        full, kept = num_tokens // self._block_size, -(-num_tokens // self._block_size)
        if full >= self._num_trunk:
            columns = kept - self._num_trunk
            self.pool.release(_deepest_first(self.tails[:, columns:]))
            self._set(self._trunk, self.tails[:, :columns].copy(), num_tokens, self._num_trunk)
            return
        # The cut is in the trunk: its last block may be written again, so it becomes a tail.
        partial = np.repeat(self.trunk[None, full:kept], self.rows, axis=0)
        self.pool.retain(partial)
        self.pool.release(_deepest_first(self.tails))
        self.pool.release(self.trunk[full:][::-1])
        self._set(self.trunk[:full].copy(), partial, num_tokens)

    def release(self) -> None:
        """Drop all rows and every reference; a second time does nothing."""
        self.pool.release(_deepest_first(self.tails))
        self.pool.release(self.trunk[::-1])
        self._set(_NO_BLOCKS, np.empty((0, 0), np.int32), 0)

    def image(self) -> TableImage:
        """The table's structure, without its blocks: enough to restore it after preemption."""
        self.promote_single_row()
        return TableImage.of(self.trunk, self.tails, self.length, self._block_size)

    def _set(self, trunk: I32, tails: I32, length: int, num_trunk: int | None = None) -> None:
        self._trunk, self.tails, self.length = trunk, tails, length
        self._num_trunk = len(trunk) if num_trunk is None else num_trunk
        self._counted = None


def _deepest_first(tails: I32) -> I32:
    """All entries of [R, C], in each row the last column first: the order of eviction."""
    return tails.ravel()[::-1]


def _is_identity(parents: I32) -> bool:
    return bool((parents == np.arange(len(parents), dtype=np.int32)).all())
