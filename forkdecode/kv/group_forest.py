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
        nodes = Nodes(*(np.concatenate([getattr(inner, n), getattr(leaves, n)]) for n in Nodes.__slots__))
        whole = (nodes.first == 0) & (nodes.last == rows) & (nodes.begin == 0)
        common = int(nodes.end[whole].max(initial=0))
        nodes = Nodes(*(getattr(nodes, n)[~whole] for n in Nodes.__slots__))
        return GroupForest(order, nodes, order[nodes.first], common)


@dataclass(frozen=True, slots=True)
class GroupNodes:
    """All nodes of a step, those that begin earlier first.

    first, count [n]: range of the query list. block [n]: first entry of the flat block list. begin,
    end [n]: tokens, from the sequence's start; the context may end before `end`. group [n]: one of
    the groups that read it; groups_first, groups_last [n]: these groups, in the order of `order`.
    """

    first: I64
    count: I64
    block: I64
    begin: I64
    end: I64
    group: I64
    groups_first: I64
    groups_last: I64
    order: I64
    block_size: int

    def seen_from(self, first_seen: I64) -> GroupNodes:
        """Without the blocks that no query of a node sees. first_seen [groups]: a position each."""
        by_order = first_seen[self.order]
        earliest = np.minimum.reduceat(
            np.append(by_order, np.iinfo(np.int64).max),
            np.stack([self.groups_first, self.groups_last], 1).ravel(),
        )[::2]
        begin = np.maximum(self.begin, earliest // self.block_size * self.block_size)
        kept = begin < self.end
        block = self.block + (begin - self.begin) // self.block_size
        moved = replace(self, begin=begin, block=block)
        return moved.chosen(kept)

    def chosen(self, which: I64 | np.ndarray) -> GroupNodes:
        """Some of the nodes, or all in another order."""
        names = ("first", "count", "block", "begin", "end", "group", "groups_first", "groups_last")
        return replace(self, **{name: getattr(self, name)[which] for name in names})


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

    first = np.concatenate([inner.first, leaves.first])
    last = np.concatenate([inner.last, leaves.last])
    begin = np.concatenate([inner.begin, leaves.begin])
    end = np.concatenate([inner.end, leaves.end])
    owner = order[first]
    upper = (at[first], at[last] - at[first], flat[owner] + begin, begin, end, owner, first, last)

    sizes_below = [len(f.source) for f in forests]
    below = np.repeat(np.arange(len(groups)), sizes_below)
    tree = [f.nodes for f in forests]
    first, last, begin, end = (
        np.concatenate([getattr(t, n) for t in tree]) if tree else np.empty(0, np.int64)
        for n in Nodes.__slots__
    )
    source = np.concatenate([f.source for f in forests]) if forests else np.empty(0, np.int64)
    lower = (
        of_query[below] + first,
        last - first,
        flat[below] + trunk[below] + source * columns[below] + begin,
        trunk[below] + begin,
        trunk[below] + end,
        below,
        rank[below],
        rank[below] + 1,
    )
    first_query, count, block, begin, end, group, groups_first, groups_last = (
        np.concatenate(pair) for pair in zip(upper, lower, strict=True)
    )
    nodes = GroupNodes(
        first_query,
        count,
        block,
        begin * shape.block_size,
        end * shape.block_size,
        group,
        groups_first,
        groups_last,
        order,
        shape.block_size,
    )
    return nodes.chosen(np.argsort(nodes.begin, kind="stable"))
