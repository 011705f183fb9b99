"""The step of many block tables at once: what each would do alone, in few numpy calls for all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from forkdecode.kv.block_table import BlockTable, Extension
from forkdecode.kv.copy_on_write import copy_on_write
from forkdecode.step import I32, BlockMoves, Bools

_NO_MOVES = BlockMoves.none()


def room_for_all(tables: Sequence[BlockTable]) -> bool:
    """Whether the pool has room for extend_all of these, whatever must be copied."""
    return sum(t.rows * (t.new_columns(1) + 1) for t in tables) <= tables[0].pool.num_available


def extend_all(tables: Sequence[BlockTable]) -> list[Extension]:
    """BlockTable.extend(1) of tables of one pool that have rows; there must be room_for_all of them.

    A partial block that several of them share is copied as often as if they came one after the other.
    """
    for table in tables:
        table.promote_single_row()
    grows = [bool(table.new_columns(1)) for table in tables]
    within = iter(_write([t for t, new in zip(tables, grows, strict=True) if not new]))
    growing = iter(_grow([t for t, new in zip(tables, grows, strict=True) if new]))
    return [next(growing if new else within) for new in grows]


def _write(tables: Sequence[BlockTable]) -> list[Extension]:
    """Those whose last blocks have room, once those are theirs alone to write to."""
    if not tables:
        return []
    pool = tables[0].pool
    starts = [0, *accumulate(t.rows for t in tables)]
    last = np.concatenate([t.tails[:, -1] for t in tables])
    cow = copy_on_write(pool, last)
    bounds, targets = [0] * len(starts), cow.sources
    if len(cow):
        targets = pool.allocate(len(cow))
        if len(cow.foreign):
            pool.protect(cow.foreign)  # their other holders may let go within this step
        pool.release(cow.sources)
        last[cow.rows] = targets
        bounds = np.searchsorted(cow.rows, starts).tolist()
    offsets = np.repeat([t.length % pool.block_size for t in tables], [t.rows for t in tables])
    slots = (last.astype(np.int64) * pool.block_size + offsets)[:, None]
    found = []
    for i, table in enumerate(tables):
        copies, first, end = _NO_MOVES, bounds[i], bounds[i + 1]
        if first < end:
            table.write_elsewhere(cow.rows[first:end] - starts[i], targets[first:end])
            copies = BlockMoves(cow.sources[first:end], targets[first:end])
        table.length += 1
        found.append(Extension(slots[starts[i] : starts[i + 1]], copies))
    return found


def _grow(tables: Sequence[BlockTable]) -> list[Extension]:
    """Those whose rows begin a block each."""
    if not tables:
        return []
    pool = tables[0].pool
    starts = [0, *accumulate(t.rows for t in tables)]
    new = pool.allocate(starts[-1])
    slots = (new.astype(np.int64) * pool.block_size)[:, None]
    found = []
    for i, table in enumerate(tables):
        table.add_columns(new[starts[i] : starts[i + 1], None])
        table.length += 1
        found.append(Extension(slots[starts[i] : starts[i + 1]], _NO_MOVES))
    return found


def advance_all(tables: Sequence[BlockTable], parents: Sequence[I32]) -> None:
    """BlockTable.advance of different tables of one pool that have rows, each by its own parents, of which
    each has some. Raises ValueError on a parent out of range in any of them, having changed nothing."""
    moving = _that_move(tables, parents) if tables else []
    for table in tables:
        table.promote_single_row()
    if not moving:
        return
    tables = [tables[i] for i in moving]
    parents = [parents[i] for i in moving]
    rows = [t.rows for t in tables]
    starts = [0, *accumulate(rows)]
    places = np.concatenate(parents) + np.repeat(starts[:-1], [len(p) for p in parents])
    children = np.bincount(places, minlength=starts[-1])
    # Within a table the deepest blocks are named first: the order of eviction.
    entries = np.concatenate([t.tails.ravel() for t in tables])[::-1]
    columns = np.repeat([t.tails.shape[1] for t in tables], rows)
    tables[0].pool.recount(entries, (children - 1).astype(np.int32).repeat(columns)[::-1])
    for table, own in zip(tables, parents, strict=True):
        table.take_rows(own)


def _that_move(tables: Sequence[BlockTable], parents: Sequence[I32]) -> list[int]:
    """Which of the tables do not keep every row in its place."""
    counts = [len(p) for p in parents]
    rows = [t.rows for t in tables]
    everyone = np.concatenate(parents)
    wrong = (everyone < 0) | (everyone >= np.repeat(rows, counts))
    if wrong.any():
        raise ValueError(f"parents: {everyone[wrong].tolist()} are out of range of their tables' rows")
    starts = [0, *accumulate(counts)][:-1]
    stays = everyone == np.arange(len(everyone)) - np.repeat(starts, counts)
    same: Bools = np.logical_and.reduceat(stays, starts) & np.equal(counts, rows)
    moving: list[int] = (~same).nonzero()[0].tolist()
    return moving
