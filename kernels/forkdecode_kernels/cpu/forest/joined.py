"""Rows of one table in ascending order, with how many columns neighbours have in common.

Rows of beams come in no order, so what a comparison of two would say can't be foretold, and most of the time
of a sort goes into that. But the blocks themselves say what rows share: from the last column to the first,
rows with the same block are looked up in a hash table and go on as one, so that a block that many rows share
is read once, and each row is compared with one other in all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.forest.order import sort_by_keys
from forkdecode_kernels.cpu.selection.jit import kernel

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U = np.uint64
"""Of indices: what is not negative need not be looked at for being counted from the end."""

FEW = 16
"""Runs: up to so many are inserted one by one."""


LIVE, HEAD, TAIL, NEXT, SAME, MEMBER, LAST, JOINED, CHOSEN, OTHER, KEY = range(11)
"""Rows of the workspace. Rows that begin alike up to some column are a run: a list of rows from HEAD to TAIL,
linked by NEXT, in ascending order, with SAME columns in common with the one before. The least of them stands
for it. LIVE: the runs that there are. JOINED: those that others are joined with; MEMBER links these, up to
LAST. CHOSEN: runs that are joined, sorted by KEY; OTHER: for sorting."""
WORKSPACE = 11


@kernel
def sort_rows(
    ids: I32, begin: int, columns: int, order: I32, shared: I32, work: I32, seen: I64, number: int
) -> int:
    """Row i is ids[begin + i * columns ..] of `columns` ids. Fills order [n] and shared [n] as sort_lists.

    work [WORKSPACE, >= n]. seen [m], m a power of two from 2 n up: a hash table, of each place the number of
    the column that filled it, and a run. Columns are numbered from number + 1 on, higher than all that filled
    it before; returns the last number given.
    """
    n = order.shape[0]
    for i in range(n):
        work[LIVE, U(i)] = work[HEAD, U(i)] = work[TAIL, U(i)] = i
    live, column = n, columns - 1
    while live > 1 and column >= 0:
        number += 1
        live = _join_column(ids, begin, columns, column, work, seen, number, live)
        column -= 1
    for i in range(live):
        work[MEMBER, work[LIVE, i]] = work[LIVE, i + 1] if i + 1 < live else -1
    _join(ids, begin, columns, 0, work, 0)
    row = work[HEAD, 0]
    work[SAME, row] = 0
    for i in range(n):
        order[U(i)], shared[U(i)] = row, work[SAME, U(row)]
        row = work[NEXT, U(row)]
    return number


@kernel
def _join_column(
    ids: I32, begin: int, columns: int, column: int, work: I32, seen: I64, number: int, live: int
) -> int:
    """Joins runs that have all columns up to this one in common, and returns how many there are then."""
    mask, mark, kept, count = seen.shape[0] - 1, np.int64(number) << 32, 0, 0
    for i in range(live):
        row = work[LIVE, U(i)]
        at = begin + row * columns
        place = ids[U(at + column)] & mask
        found = seen[U(place)]
        while found >= mark and not _alike(ids, at, begin + (found - mark) * columns, column + 1):
            place = place + 1 & mask
            found = seen[U(place)]
        work[MEMBER, U(row)] = -1
        work[LAST, U(row)] = row
        if found < mark:
            seen[U(place)] = mark + row
            work[LIVE, U(kept)] = row
            kept += 1
        else:
            other = found - mark
            before = work[LAST, U(other)]
            work[JOINED, U(count)] = other
            count += before == other
            work[MEMBER, U(before)] = row
            work[LAST, U(other)] = row
    for i in range(count):
        _join(ids, begin, columns, column + 1, work, work[JOINED, U(i)])
    return kept


@kernel
def _alike(ids: I32, a: int, b: int, count: int) -> bool:
    """Whether the `count` ids from a and from b on are the same, the last ones first: they tell most."""
    while count >= 8:
        count -= 8
        different = np.int32(0)
        for i in range(8):
            different |= ids[U(a + count + i)] ^ ids[U(b + count + i)]
        if different:
            return False
    different = np.int32(0)
    for i in range(count):
        different |= ids[U(a + i)] ^ ids[U(b + i)]
    return bool(different == 0)


@kernel
def _join(ids: I32, begin: int, columns: int, depth: int, work: I32, run: int) -> None:
    """Links the runs from `run` on, all with `depth` columns in common, into one, by their ids there."""
    count, row = 0, run
    while row >= 0:
        key = np.int64(ids[U(begin + row * columns + depth)]) if depth < columns else 0
        work[KEY, U(row)] = key
        at = count
        if count < FEW:
            while at and work[KEY, U(work[CHOSEN, U(at - 1)])] > key:
                work[CHOSEN, U(at)] = work[CHOSEN, U(at - 1)]
                at -= 1
        work[CHOSEN, U(at)] = row
        count += 1
        row = work[MEMBER, U(row)]
    if count > FEW:
        sort_by_keys(work[KEY], work[CHOSEN, :count], work[OTHER])
    head, last = work[HEAD, U(work[CHOSEN, 0])], work[TAIL, U(work[CHOSEN, 0])]
    for i in range(1, count):
        row = work[HEAD, U(work[CHOSEN, U(i)])]
        work[NEXT, U(last)] = row
        work[SAME, U(row)] = depth
        last = work[TAIL, U(work[CHOSEN, U(i)])]
    work[HEAD, U(run)], work[TAIL, U(run)] = head, last
