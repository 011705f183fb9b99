"""Common prefixes of block tables as a forest: which runs of blocks which rows share.

Rows are sorted so that sharers are neighbours; the lengths of neighbours' common prefixes then hold
the whole forest (the intervals of a longest-common-prefix array: Abouelhoda, Kurtz and Ohlebusch 2004,
"Replacing suffix trees with enhanced suffix arrays", section 3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forkdecode.step import I32, I64


@dataclass(frozen=True, slots=True)
class Nodes:
    """table [4, n]: rows first .. last (not included) of the order share columns begin .. end."""

    table: I64

    @property
    def first(self) -> I64:
        row: I64 = self.table[0]
        return row


def sorted_rows(table: I32) -> tuple[I64, I64]:
    """table [n, C] -> an order of its rows in which sharers are neighbours, and the common prefixes.

    The prefixes [n + 1]: columns that each row of the order has in common with the one before it,
    -1 at both ends.
    """
    rows, columns = table.shape
    shared = np.full(rows + 1, -1, np.int64)
    if rows == 1 or columns == 0:
        shared[1:-1] = 0
        return np.arange(rows), shared
    # What all rows share need not be compared again and again by the sort.
    everywhere = (table == table[0]).all(0)
    common = columns if everywhere.all() else int(everywhere.argmin())
    if common == columns:
        shared[1:-1] = columns
        return np.arange(rows), shared
    rest = table[:, common:]
    # Ids are not negative, so that big-endian bytes compare as the ids do.
    keys = rest.astype(">i4").view(f"V{4 * rest.shape[1]}")[:, 0]
    order = np.argsort(keys)
    ordered = rest[order]
    different = ordered[1:] != ordered[:-1]
    first = different.argmax(1)
    same = ~different[np.arange(rows - 1), first]
    shared[1:-1] = common + np.where(same, columns - common, first)
    return order, shared


def leaf_nodes(shared: I64, ends: I64) -> Nodes:
    """What each row has for itself, up to column ends [n]; rows with nothing of their own are left out."""
    begin = np.maximum(np.maximum(shared[:-1], shared[1:]), 0)
    kept = np.flatnonzero(begin < ends)
    return Nodes(np.stack([kept, kept + 1, begin.take(kept), ends.take(kept)]))


def internal_nodes(
    shared: I64, queries: I64, tokens_a_column: int, group: int, *, fold: bool = True
) -> tuple[Nodes, I64]:
    """The nodes of two rows or more, and `shared` as they leave it. shared [n + 1] of `sorted_rows`.

    With `fold`, nodes that cost more than they save are left out and their children read those
    columns: a node of len tokens and n queries costs its reads and partial results of n * group
    heads; without it the blocks are read n times, so that it pays from about 2 * group * n / (n - 1)
    tokens up. queries [n]: of each row of the order.
    """
    total = np.concatenate([[0], np.cumsum(queries)])
    while True:
        inner = np.flatnonzero(shared > 0)
        if not len(inner):
            return Nodes(np.empty((4, 0), np.int64)), shared
        first, last, new = _smaller_neighbours(shared, inner)
        end = shared.take(inner)
        begin = np.maximum(np.maximum(shared.take(first), shared.take(last)), 0)
        n = total.take(last) - total.take(first)
        short = (end - begin) * tokens_a_column * (n - 1) < 2 * group * n
        if not fold or not short.any():
            return Nodes(np.stack([first, last, begin, end]).compress(new, 1)), shared
        shared = shared.copy()
        shared[inner[short]] = begin[short]


def _smaller_neighbours(shared: I64, inner: I64) -> tuple[I64, I64, NDArray[np.bool_]]:
    """For boundaries `inner`: the nearest ones before and after with a shorter common prefix, and
    whether none of the same length lies between it and the one before (else they bound one node)."""
    n, values = len(shared), shared.take(inner)
    low = int(values.min())
    # A row for each length that occurs, one more to find boundaries that are no longer.
    shorter = shared < np.arange(low, int(values.max()) + 2)[:, None]
    at = np.arange(n)
    before = np.maximum.accumulate(np.where(shorter, at, 0), axis=1)
    after = np.minimum.accumulate(np.where(shorter, at, n - 1)[:, ::-1], axis=1)
    level = values - low
    first = before[level, inner]
    return first, after[level, n - 1 - inner], before[level + 1, inner - 1] == first
