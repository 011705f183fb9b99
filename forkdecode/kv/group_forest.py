"""The nodes of a step: what groups share of their trunks, and what rows share of their tails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from forkdecode.kv.forest_items import ItemShape
from forkdecode.kv.prefix_forest import Nodes, internal_nodes, leaf_nodes, sorted_rows
from forkdecode.step import I32, I64, DecodeRows


@dataclass(frozen=True, slots=True)
class GroupForest:
    """How the rows of one group share their tails [R, C].

    order [R]: rows, sharers beside each other. nodes: over the order; source [nodes]: a row of each.
    common: leading columns that are the same in all rows; these are in no node.
    """

    order: I64
    nodes: Nodes
    source: I64
    common: int

    @staticmethod
    def of(tails: I32, shape: ItemShape) -> GroupForest:
        rows, columns = tails.shape
        order, shared = sorted_rows(tails)
        ones = np.ones(rows, np.int64)
        inner, shared = internal_nodes(shared, ones, shape.block_size, shape.group)
        leaves = leaf_nodes(shared, ones * columns)
        table = np.concatenate([inner.table, leaves.table], 1)
        whole = (table[0] == 0) & (table[1] == rows) & (table[2] == 0)
        common = int(table[3].max(initial=0, where=whole))
        nodes = Nodes(table.compress(~whole, 1))
        return GroupForest(order, nodes, order[nodes.first], common)


@dataclass(frozen=True, slots=True)
class GroupNodes:
    """All nodes of a step, those that begin earlier first. table [8, n]: first and number of entries
    in the query list; first entry in the flat block list; begin and end in tokens from the sequence's
    start (the context may end before); one of the groups that read it; these groups, first and last
    (not included) in the order of `order`.
    """

    table: I64
    order: I64
    block_size: int

    @property
    def begin(self) -> I64:
        row: I64 = self.table[3]
        return row

    @property
    def end(self) -> I64:
        row: I64 = self.table[4]
        return row

    @property
    def group(self) -> I64:
        row: I64 = self.table[5]
        return row

    def seen_from(self, first_seen: I64) -> GroupNodes:
        """Without the blocks that no query of a node sees. first_seen [groups]: a position each."""
        by_order = first_seen[self.order]
        earliest = np.minimum.reduceat(np.append(by_order, np.iinfo(np.int64).max), self.table[6:].T.ravel())[
            ::2
        ]
        begin = np.maximum(self.begin, earliest // self.block_size * self.block_size)
        table = self.table.copy()
        table[2] += (begin - self.begin) // self.block_size
        table[3] = begin
        return replace(self, table=table.compress(begin < self.end, 1))


def trunk_forest(trunks: Sequence[I32], shape: ItemShape) -> tuple[I64, I64]:
    """An order of groups in which those that share trunk blocks are neighbours, and how many, as of
    prefix_forest.sorted_rows. With fixed splits, down to a multiple of these."""
    n = len(trunks)
    shared = np.zeros(n + 1, np.int64)
    shared[[0, -1]] = -1
    heads = [int(t[0]) for t in trunks if len(t)]
    if len(set(heads)) == len(heads):
        return np.arange(n), shared
    order = sorted(range(n), key=lambda g: trunks[g].astype(">i4").tobytes())
    for i in range(1, n):
        a, b = trunks[order[i - 1]], trunks[order[i]]
        size = min(len(a), len(b))
        parted = np.flatnonzero(a[:size] != b[:size])
        shared[i] = parted[0] if len(parted) else size
    if shape.split_tokens is not None:
        blocks = shape.split_tokens // shape.block_size
        shared[1:-1] = shared[1:-1] // blocks * blocks
    return np.array(order), shared


def group_nodes(
    groups: Sequence[DecodeRows],
    order: I64,
    shared: I64,
    forests: Sequence[GroupForest],
    queries: I64,
    shape: ItemShape,
) -> GroupNodes:
    """The nodes of all groups. queries [groups]: how many query tokens each has."""
    trunk = np.array([len(g.trunk) for g in groups], np.int64)
    sizes = np.array([g.tails.size for g in groups], np.int64) + trunk
    columns = np.array([g.tails.shape[1] for g in groups], np.int64)
    flat = np.cumsum(sizes) - sizes
    own_queries = queries[order]
    inner, shared = internal_nodes(
        shared, own_queries, shape.block_size, shape.group, fold=shape.split_tokens is None
    )
    # A group's common tail columns go on where its trunk ends, in the flat list too.
    common = np.array([f.common for f in forests], np.int64)
    leaves = leaf_nodes(shared, (trunk + common)[order])
    at = np.concatenate([[0], np.cumsum(own_queries)])
    of_query = np.empty(len(groups), np.int64)
    of_query[order] = at[:-1]
    rank = np.empty(len(groups), np.int64)
    rank[order] = np.arange(len(groups))

    first, last, begin, end = np.concatenate([inner.table, leaves.table], 1)
    owner = order[first]
    upper = (at[first], at[last] - at[first], flat[owner] + begin, begin, end, owner, first, last)

    below = np.repeat(np.arange(len(groups)), [len(f.source) for f in forests])
    first, last, begin, end = np.concatenate([f.nodes.table for f in forests], 1)
    source = np.concatenate([f.source for f in forests])
    behind = trunk[below]
    lower = (
        of_query[below] + first,
        last - first,
        flat[below] + behind + source * columns[below] + begin,
        behind + begin,
        behind + end,
        below,
        rank[below],
        rank[below] + 1,
    )
    table = np.concatenate([np.stack(upper), np.stack(lower)], 1)
    table[3:5] *= shape.block_size
    return GroupNodes(table.take(np.argsort(table[3], kind="stable"), 1), order, shape.block_size)
