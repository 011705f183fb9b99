"""Common prefixes of block tables as a forest: which runs of blocks which rows share.

Rows are sorted so that sharers are neighbours; the lengths of neighbours' common prefixes then hold
the whole forest (the intervals of a longest-common-prefix array: Abouelhoda, Kurtz and Ohlebusch 2004,
"Replacing suffix trees with enhanced suffix arrays", section 3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forkdecode.step import I32, I64


@dataclass(frozen=True, slots=True)
class Nodes:
    """Node i: rows first[i] .. last[i] (not included) of the order share columns begin[i] .. end[i]."""

    first: I64
    last: I64
    begin: I64
    end: I64


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
    return Nodes(kept, kept + 1, begin[kept], ends[kept])


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
            return Nodes(inner, inner, inner, inner), shared
        before, after = _smaller_neighbours(shared)
        first, last, end = before.take(inner), after.take(inner), shared.take(inner)
        begin = np.maximum(np.maximum(shared.take(first), shared.take(last)), 0)
        n = total.take(last) - total.take(first)
        short = (end - begin) * tokens_a_column * (n - 1) < 2 * group * n
        if not fold or not short.any():
            break
        shared = shared.copy()
        shared[inner[short]] = begin[short]
    # Boundaries of one node name it several times.
    _, kept = np.unique(first * len(shared) + last, return_index=True)
    return Nodes(first[kept], last[kept], begin[kept], end[kept]), shared


def _smaller_neighbours(shared: I64) -> tuple[I64, I64]:
    """For each boundary the nearest ones before and after it with a shorter common prefix.

    Both at once, by pointer jumping: all boundaries between one and its pointer are no shorter.
    """
    n = len(shared)
    value = np.concatenate([shared, shared])
    bar = value.copy()
    bar[[0, n - 1, n, 2 * n - 1]] = n + int(shared.max())  # both ends stand
    jump = np.concatenate([np.arange(-1, n - 1), np.arange(n + 1, 2 * n + 1)])
    jump[0], jump[-1] = 0, 2 * n - 1
    while True:
        open_ = value.take(jump) >= bar
        if not open_.any():
            return jump[:n], jump[n:] - n
        jump = np.where(open_, jump.take(jump), jump)
