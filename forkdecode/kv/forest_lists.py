"""The node list of a step by numpy: what a compiled one is tested against, and what works without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from forkdecode.kv.forest_items import Forest, ItemShape, cut_items, list_items
from forkdecode.kv.group_forest import StepRows, group_nodes
from forkdecode.kv.prefix_forest import SortedRows, sorted_rows
from forkdecode.step import I32, I64, DecodeRows


@dataclass(frozen=True, slots=True)
class StepTables:
    """What a node list is made from.

    groups: of the step, which has num_tokens query tokens, padding included. blocks: of each group its trunk,
    then each row's tail. sizes [6, groups]: of each its first query token, rows, queries of each row,
    context, blocks of the trunk, and columns of the tails.
    """

    groups: Sequence[DecodeRows]
    blocks: I32
    sizes: I64
    num_tokens: int

    @staticmethod
    def of(groups: Sequence[DecodeRows], queries: Sequence[int], num_tokens: int) -> StepTables:
        """queries: of each row of a group."""
        sizes: list[int] = []
        for g, n in zip(groups, queries, strict=True):
            rows, columns = g.tails.shape
            sizes += (g.token_start, rows, n, g.context_len, len(g.trunk), columns)
        table = np.array(sizes, np.int64).reshape(-1, 6).T
        blocks = _flat([a for g in groups for a in (g.trunk, g.tails)])
        return StepTables(groups, blocks, np.ascontiguousarray(table), num_tokens)


def _flat(arrays: Sequence[I32]) -> I32:
    """All entries, one array after the other."""
    try:
        return np.frombuffer(bytearray().join(arrays), np.int32)  # type: ignore[arg-type]
    except TypeError:  # which is what join says of arrays that are not contiguous
        return np.concatenate([a.ravel() for a in arrays])


class Lister(Protocol):
    """Makes node lists. window: keys that a query sees, None for all."""

    def __call__(self, tables: StepTables, shape: ItemShape, window: int | None) -> Forest: ...


class NumpyLister:
    """A Lister. Keeps the order of rows whose tables don't change."""

    def __init__(self) -> None:
        self._sorted: dict[int, tuple[I32, SortedRows]] = {}

    def __call__(self, tables: StepTables, shape: ItemShape, window: int | None) -> Forest:
        groups, counts, contexts = tables.groups, tables.sizes[2], tables.sizes[3]
        ordered = StepRows.of(groups, self._sorted_rows(groups), shape)
        nodes = group_nodes(groups, ordered, counts, shape)
        if window is not None:
            nodes = nodes.seen_from(contexts - counts - window + 1)
        queries, positions = _queries(tables, ordered)
        return list_items(cut_items(nodes, contexts, shape), contexts, queries, positions)

    def _sorted_rows(self, groups: Sequence[DecodeRows]) -> list[SortedRows]:
        """Of each group's tails; those of unchanged tables are kept."""
        before, kept = self._sorted, {}
        fresh = []
        for g in groups:
            known = before.get(id(g.tails))
            if known is not None and known[0] is g.tails:
                kept[id(g.tails)] = known
            else:
                fresh.append(g.tails)
        for tails, rows in zip(fresh, sorted_rows(fresh), strict=True):
            kept[id(tails)] = (tails, rows)
        self._sorted = kept
        return [kept[id(g.tails)][1] for g in groups]


def _queries(tables: StepTables, rows: StepRows) -> tuple[I32, I32]:
    """Query tokens in the forest's order, and the position of every token."""
    starts, _, counts, contexts, _, _ = tables.sizes
    positions = np.zeros(tables.num_tokens, np.int32)
    queries, group = starts.take(rows.group) + rows.row, rows.group
    first = (contexts - counts).take(group)
    if (counts > 1).any():
        each = counts.take(group)
        ends = each.cumsum()
        offset = np.arange(int(ends[-1])) - (ends - each).repeat(each)
        queries, first = queries.repeat(each) + offset, first.repeat(each) + offset
    positions[queries] = first
    return queries.astype(np.int32), positions
