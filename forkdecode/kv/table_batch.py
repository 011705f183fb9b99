"""The step of many block tables at once: what each would do alone, in few numpy calls for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from forkdecode.kv.block_table import BlockTable
from forkdecode.kv.copy_on_write import copy_on_write
from forkdecode.parts import parts
from forkdecode.step import I32, I64, BlockMoves, Bools

_NO_MOVES = BlockMoves.none()


@dataclass(frozen=True, slots=True)
class Extensions:
    """What `BlockTable.extend(1)` of several tables gave, in their order. slots [R of all]: of each row's
    new token. copies: of all tables; counts: how many of them are each table's.
    """

    slots: I64
    copies: BlockMoves
    counts: list[int]

    def only(self, kept: Sequence[int], rows: Sequence[int]) -> Extensions:
        """Those of the tables `kept`; rows: how many each table has."""
        stays = np.zeros(len(rows), np.bool_)
        stays[list(kept)] = True
        copied = stays.repeat(self.counts)
        return Extensions(
            self.slots[stays.repeat(rows)],
            BlockMoves(self.copies.source[copied], self.copies.target[copied]),
            [self.counts[i] for i in kept],
        )


def room_for_all(tables: Sequence[BlockTable]) -> bool:
    """Whether the pool has room for extend_all of these, whatever must be copied."""
    available = tables[0].pool.num_available
    if 2 * sum([len(t.tails) for t in tables]) <= available:
        return True
    return sum(t.rows * (t.new_columns(1) + 1) for t in tables) <= available


def extend_all(tables: Sequence[BlockTable]) -> Extensions:
    """BlockTable.extend(1) of tables of one pool that have rows; there must be room_for_all of them.

    A partial block that several of them share is copied as often as if they came one after the other.
    """
    for table in tables:
        if len(table.tails) == 1:
            table.promote_single_row()
    pool = tables[0].pool
    rows = np.array([len(t.tails) for t in tables])
    offsets = np.array([t.length for t in tables]) % pool.block_size
    # Whose last blocks are full begins new ones.
    grows = offsets == 0
    flags = grows.tolist()
    last = np.empty(int(rows.sum()), np.int32)
    new = grows.repeat(rows)
    counts, copies = [0] * len(tables), _NO_MOVES
    if not grows.all():
        within = [t for t, begins in zip(tables, flags, strict=True) if not begins]
        last[~new], copies, each = _write(within)
        for place, count in zip((~grows).nonzero()[0].tolist(), each, strict=True):
            counts[place] = count
    if grows.any():
        last[new] = _grow([t for t, begins in zip(tables, flags, strict=True) if begins])
    for table in tables:
        table.length += 1
    slots = last.astype(np.int64) * pool.block_size + offsets.repeat(rows)
    return Extensions(slots, copies, counts)


def _write(tables: Sequence[BlockTable]) -> tuple[I32, BlockMoves, list[int]]:
    """Those whose last blocks have room, once those are theirs alone to write to: the last block of each
    row, the copies, and how many of them are each table's."""
    pool = tables[0].pool
    last = np.concatenate([t.tails[:, -1] for t in tables])
    cow = copy_on_write(pool, last)
    if not len(cow):
        return last, _NO_MOVES, [0] * len(tables)
    targets = pool.allocate(len(cow))
    if len(cow.foreign):
        pool.protect(cow.foreign)  # their other holders may let go within this step
    pool.release(cow.sources)
    last[cow.rows] = targets
    starts = np.array([0, *accumulate([len(t.tails) for t in tables])])
    counts = np.diff(np.searchsorted(cow.rows, starts)).tolist()
    changed = [i for i, count in enumerate(counts) if count]
    for same in _alike([tables[i].tails.shape[1] for i in changed]):
        places = [changed[i] for i in same]
        tails = np.concatenate([tables[i].tails for i in places])
        tails[:, -1] = np.concatenate([last[starts[i] : starts[i + 1]] for i in places])
        for place, own in zip(places, parts(tails, [len(tables[i].tails) for i in places]), strict=True):
            tables[place].set_tails(own)
    return last, BlockMoves(cow.sources, targets), counts


def _grow(tables: Sequence[BlockTable]) -> I32:
    """Those whose rows begin a block each: these blocks."""
    starts = [0, *accumulate([len(t.tails) for t in tables])]
    new = tables[0].pool.allocate(starts[-1])
    columns = new[:, None]
    for table, (first, end) in zip(tables, pairwise(starts), strict=True):
        table.add_columns(columns[first:end])
    return new


def count_all(tables: Sequence[BlockTable]) -> None:
    """Makes num_unique and num_last of tables of one pool known, where they are not."""
    unknown = [t for t in tables if t.uncounted]
    if len(unknown) < 2:
        return
    shapes = np.array([t.tails.shape for t in unknown])
    sizes = shapes.prod(axis=1)
    entries = np.concatenate([t.tails.ravel() for t in unknown])
    one_each = unknown[0].pool.occurrences.one_each_within(entries, np.arange(len(unknown)).repeat(sizes))
    if one_each is None:  # a block is in several tables: each counts its own
        return
    unique = np.add.reduceat(one_each, sizes.cumsum() - sizes, dtype=np.int64)
    ends = shapes[:, 1].repeat(shapes[:, 0]).cumsum() - 1
    last = np.add.reduceat(one_each[ends], shapes[:, 0].cumsum() - shapes[:, 0], dtype=np.int64)
    for table, blocks, open_ones in zip(unknown, unique.tolist(), last.tolist(), strict=True):
        table.counted(blocks, open_ones)


def advance_all(tables: Sequence[BlockTable], parents: Sequence[I32]) -> None:
    """BlockTable.advance of different tables of one pool that have rows, each by its own parents, of which
    each has some. Raises ValueError on a parent out of range in any of them, having changed nothing."""
    moving = _that_move(tables, parents) if tables else []
    for table in tables:
        if len(table.tails) == 1:
            table.promote_single_row()
    if not moving:
        return
    tables = [tables[i] for i in moving]
    parents = [parents[i] for i in moving]
    rows = [len(t.tails) for t in tables]
    starts = [0, *accumulate(rows)]
    places = np.concatenate(parents) + np.repeat(starts[:-1], [len(p) for p in parents])
    children = np.bincount(places, minlength=starts[-1])
    # Within a table the deepest blocks are named first: the order of eviction.
    entries = np.concatenate([t.tails.ravel() for t in tables])[::-1]
    columns = np.repeat([t.tails.shape[1] for t in tables], rows)
    tables[0].pool.recount(entries, (children - 1).astype(np.int32).repeat(columns)[::-1])
    common: list[int] = []
    for same in _alike([t.tails.shape[1] for t in tables]):
        look = _take_rows([tables[i] for i in same], [parents[i] for i in same])
        common += [i for i, worth in zip(same, look, strict=True) if worth]
    for place in sorted(common):
        tables[place].promote_common()


def _take_rows(tables: Sequence[BlockTable], parents: Sequence[I32]) -> list[bool]:
    """BlockTable.take_rows of tables whose tails have as many columns, but for promotion: who has any."""
    sizes = [len(t.tails) for t in tables]
    counts = [len(p) for p in parents]
    starts = np.array([0, *accumulate(sizes[:-1])])
    sources = np.concatenate(parents) + starts.repeat(counts)
    tails = np.concatenate([t.tails for t in tables]).take(sources, axis=0)
    for table, own in zip(tables, parts(tails, counts), strict=True):
        table.set_tails(own)
    if not tails.shape[1]:
        return [False] * len(tables)
    # Rows that have come to share a block share the first. Most steps end at the look at first and last row.
    ends = np.cumsum(counts)
    look: list[bool] = (tails[ends - counts, 0] == tails[ends - 1, 0]).tolist()
    return look


def _alike(values: Sequence[int]) -> list[list[int]]:
    """Places of equal values, together."""
    found: dict[int, list[int]] = defaultdict(list)
    for place, value in enumerate(values):
        found[value].append(place)
    return list(found.values())


def _that_move(tables: Sequence[BlockTable], parents: Sequence[I32]) -> list[int]:
    """Which of the tables do not keep every row in its place."""
    counts = [len(p) for p in parents]
    rows = [len(t.tails) for t in tables]
    everyone = np.concatenate(parents)
    wrong = (everyone < 0) | (everyone >= np.repeat(rows, counts))
    if wrong.any():
        raise ValueError(f"parents: {everyone[wrong].tolist()} are out of range of their tables' rows")
    starts = [0, *accumulate(counts)][:-1]
    stays = everyone == np.arange(len(everyone)) - np.repeat(starts, counts)
    same: Bools = np.logical_and.reduceat(stays, starts) & np.equal(counts, rows)
    moving: list[int] = (~same).nonzero()[0].tolist()
    return moving
