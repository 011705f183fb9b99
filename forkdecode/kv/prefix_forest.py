"""Common prefixes of block tables as a forest: which runs of blocks which rows share.

Rows are sorted so that sharers are neighbours; the lengths of neighbours' common prefixes then hold
the whole forest (the intervals of a longest-common-prefix array: Abouelhoda, Kurtz and Ohlebusch 2004,
"Replacing suffix trees with enhanced suffix arrays", section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from forkdecode.step import I32, I64, Bools


@dataclass(frozen=True, slots=True)
class Nodes:
    """table [4, n]: rows first .. last (not included) of the order share columns begin .. end."""

    table: I64


@dataclass(frozen=True, slots=True)
class SortedRows:
    """The rows of a table [n, C] in an order in which sharers are neighbours.

    shared [n - 1]: columns that each row of the order but the first has in common with the one before it.
    """

    order: I64
    shared: I64


def sorted_rows(tables: Sequence[I32]) -> list[SortedRows]:
    """Each table's rows. Those of all tables are sorted together: many small sorts would cost more."""
    found = [SortedRows(_ONE, _NONE)] * len(tables)
    several = [i for i, table in enumerate(tables) if len(table) > 1]
    if not several:
        return found
    chosen = [tables[i] for i in several]
    counts = np.array([len(table) for table in chosen])
    columns = max(table.shape[1] for table in chosen)
    ends = counts.cumsum()
    # Ids are not negative, so that big-endian bytes compare as the ids do.
    keys = np.zeros((int(ends[-1]), 1 + columns), ">i4")
    keys[:, 0] = np.arange(len(chosen)).repeat(counts)
    begin = 0
    for table, end in zip(chosen, ends.tolist(), strict=True):
        keys[begin:end, 1 : 1 + table.shape[1]] = table
        begin = end
    order = np.argsort(keys.view(f"V{4 * keys.shape[1]}")[:, 0], kind="stable")
    ordered = keys[order]
    different = ordered[1:] != ordered[:-1]
    first = different.argmax(1)
    # Of equal rows nothing differs: they share all columns of their table.
    widths = np.array([table.shape[1] for table in chosen]).repeat(counts)[1:]
    shared = np.where(different[np.arange(len(first)), first], first - 1, widths)
    order -= (ends - counts).repeat(counts)
    begin = 0
    for i, end in zip(several, ends.tolist(), strict=True):
        found[i] = SortedRows(order[begin:end], shared[begin : end - 1])
        begin = end
    return found


def leaf_nodes(shared: I64, ends: I64) -> Nodes:
    """What each row has for itself, up to column ends [n]; rows with nothing of their own are left out.
    shared [n + 1]: columns that each row has in common with the one before it, -1 at both ends."""
    begin = np.maximum(np.maximum(shared[:-1], shared[1:]), 0)
    kept = np.flatnonzero(begin < ends)
    return Nodes(np.stack([kept, kept + 1, begin.take(kept), ends.take(kept)]))


def internal_nodes(
    shared: I64,
    queries: I64,
    tokens_a_column: int,
    group: int,
    may_fold: Callable[[I64, I64, I64], Bools],
) -> tuple[Nodes, I64]:
    """The nodes of two rows or more, and `shared` [n + 1] as they leave it; see leaf_nodes.

    Nodes that cost more than they save are left out, and their children read those columns: a node of len
    tokens and n queries costs its reads and partial results of n * group heads; without it the blocks are
    read n times, so that it pays from about 2 * group * n / (n - 1) tokens up. queries [n]: of each row of
    the order. may_fold: of boundaries, whether rows on both sides may be parted, by (boundary, first and
    last row of its node). Outermost first: what is inside one that is left out grows, and may pay then.
    """
    total = np.concatenate([[0], np.cumsum(queries)])
    while True:
        inner = np.flatnonzero(shared > 0)
        if not len(inner):
            return Nodes(np.empty((4, 0), np.int64)), shared
        first, last = _smaller_neighbours(shared, inner)
        end = shared.take(inner)
        begin = np.maximum(np.maximum(shared.take(first), shared.take(last)), 0)
        n = total.take(last) - total.take(first)
        short = (end - begin) * tokens_a_column * (n - 1) < 2 * group * n
        short &= may_fold(inner, first, last)
        if not short.any():
            # Boundaries of equal length between the same smaller ones bound one node.
            _, once = np.unique(first * (int(end.max()) + 1) + end, return_index=True)
            return Nodes(np.stack([first, last, begin, end]).take(once, 1)), shared
        outer = np.where(shared.take(first) >= shared.take(last), first, last)
        left_out = np.zeros(len(shared), np.bool_)
        left_out[inner[short]] = True
        short &= ~left_out.take(outer)
        shared = shared.copy()
        shared[inner[short]] = begin[short]


def _smaller_neighbours(shared: I64, inner: I64) -> tuple[I64, I64]:
    """For boundaries `inner`: the nearest ones before and after with a shorter common prefix."""
    return _smaller(shared, inner, -1), _smaller(shared, inner, 1)


def _smaller(shared: I64, inner: I64, way: int) -> I64:
    """The nearest boundary before (way -1) or after (1) each with a shorter common prefix. All look at
    once, and go on from where those that they found have come to."""
    towards = np.arange(way, len(shared) + way)
    active = inner
    while len(active):
        found = towards.take(active)
        on = shared.take(found) >= shared.take(active)
        active, found = active[on], found[on]
        towards[active] = towards.take(found)
    return towards.take(inner)


_ONE, _NONE = np.zeros(1, np.int64), np.empty(0, np.int64)
