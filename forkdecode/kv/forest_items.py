"""Nodes cut into work items for two tile shapes, and the list of parts that each query is merged from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forkdecode.step import I32, I64

if TYPE_CHECKING:
    from forkdecode.kv.group_forest import GroupNodes

LEAST_SPLIT = 256
"""Tokens: below this the merge of a part costs as much as it saves."""


@dataclass(frozen=True, slots=True)
class ItemShape:
    """What items are cut for.

    tile_queries: queries that an item of the small and of the large tile shape holds. group: query
    heads of a kv head. processors: of the GPU; long nodes are split until these are busy.
    split_tokens: if given, every node is split at the multiples of this and there is one tile shape,
    whatever else is in the step; a multiple of the block size.
    """

    block_size: int
    tile_queries: tuple[int, int]
    group: int
    num_kv_heads: int
    processors: int
    split_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Items:
    """Item i is `count` queries from `first` on, over tokens begin .. end of its node, as far as the
    context of its group goes. block: of its first token, in the flat list.
    node_begin, node_end, node_group: of the nodes."""

    first: I64
    count: I64
    block: I64
    begin: I64
    end: I64
    group: I64
    large: NDArray[np.bool_]
    node_begin: I64
    node_end: I64
    node_group: I64


@dataclass(frozen=True, slots=True)
class Forest:
    """The node list of a step, and what of it changes where contexts grow inside their last blocks: lengths
    and positions alone. The fields of forkdecode_kernels.node_list, but for these.

    table [items, 8]: the items, the first num_small of them for the small tile shape. spans [3, items]: of
    each where it begins, where it ends at the latest, and the last group that reads it, whose context may end
    it before. nodes [3, n]: the same of the nodes.
    """

    queries: I32
    positions: I32
    table: I32
    num_small: int
    spans: I64
    nodes: I64
    merged: I32
    merge_offsets: I32
    merge_parts: I32
    num_parts: int

    @property
    def small_items(self) -> I32:
        return self.table[: self.num_small]

    @property
    def large_items(self) -> I32:
        return self.table[self.num_small :]

    def grown(self, contexts: I64, positions: I32) -> Forest:
        """With other contexts [groups], inside the same blocks, and positions [T]."""
        table = self.table.copy()
        table[:, 3] = within(self.spans, contexts)
        return replace(self, table=table, positions=positions)


def within(spans: I64, contexts: I64) -> I64:
    """Tokens of spans [3, n], see Forest, as far as the contexts [groups] go."""
    begin, end, group = spans
    lengths: I64 = np.minimum(end, contexts.take(group)) - begin
    return lengths


def cut_items(nodes: GroupNodes, contexts: I64, shape: ItemShape) -> Items:
    """Every node, by queries into tiles and by tokens into splits; tiles of one split lie side by side,
    so that the second finds the blocks in the cache."""
    small, whole = shape.tile_queries
    first, count, block, begin, cap, group = nodes.table[:6]
    large = count > small if shape.split_tokens is None else np.ones(len(count), np.bool_)
    width = np.where(large, whole, small)
    tiles = -(-count // width)
    end = np.minimum(cap, contexts[group])
    if shape.split_tokens is None:
        # As many tokens an item as leave two for each processor.
        even = int((tiles * (end - begin)).sum()) * shape.num_kv_heads / (2 * shape.processors)
        step = -(-int(max(even, 1)) // LEAST_SPLIT) * LEAST_SPLIT
        origin = begin
    else:
        step = shape.split_tokens
        origin = begin // step * step
    splits = -(-(end - origin) // step)
    per_node = tiles * splits
    node = np.repeat(np.arange(len(tiles)), per_node)
    index = np.arange(len(node)) - (np.cumsum(per_node) - per_node).take(node)
    split, tile = np.divmod(index, tiles.take(node))
    node_begin, node_width, after = begin.take(node), width.take(node), origin.take(node) + split * step
    start = np.maximum(after, node_begin)
    offset = tile * node_width
    return Items(
        first.take(node) + offset,
        np.minimum(node_width, count.take(node) - offset),
        block.take(node) + (start - node_begin) // shape.block_size,
        start,
        np.where(split == splits.take(node) - 1, cap.take(node), after + step),
        group.take(node),
        large.take(node),
        begin,
        cap,
        group,
    )


def list_items(items: Items, contexts: I64, queries: I32, positions: I32) -> Forest:
    """Numbers the parts. A query that one item alone reads is written by it, without a part."""
    count, num_tokens = len(queries), len(positions)
    uses = np.cumsum(
        np.bincount(items.first, minlength=count + 1)
        - np.bincount(items.first + items.count, minlength=count + 1)
    )[:count]
    several = np.concatenate([[0], np.cumsum(uses > 1)])
    in_parts = several[items.first + items.count] > several[items.first]
    sizes = np.where(in_parts, items.count, 0)
    part = np.where(in_parts, np.cumsum(sizes) - sizes, -1)
    num_parts = int(sizes.sum())

    owner = np.repeat(items.first - np.cumsum(sizes) + sizes, sizes) + np.arange(num_parts)
    # Stable: a query's parts stay in the order of its tokens. 16-bit keys are sorted by radix.
    by_query = np.argsort(owner.astype(np.uint16) if count < 1 << 16 else owner, kind="stable")
    needs = np.bincount(owner, minlength=count)
    listed = np.flatnonzero(needs)
    untouched = np.ones(num_tokens, np.bool_)
    untouched[queries[uses > 0]] = False
    zeros = np.flatnonzero(untouched)
    offsets = np.concatenate([[0], np.cumsum(needs[listed]), np.full(len(zeros), num_parts)])

    # Those of the small tile shape first, now that parts are numbered.
    order = np.argsort(items.large, kind="stable")
    spans = np.stack([items.begin, items.end, items.group]).take(order, 1)
    table = np.zeros((len(order), 8), np.int32)
    for column, values in ((0, items.first), (1, items.count), (2, items.block), (4, items.begin), (5, part)):
        table[:, column] = values.take(order)
    table[:, 3] = within(spans, contexts)
    return Forest(
        queries,
        positions,
        table,
        len(order) - int(items.large.sum()),
        spans,
        np.stack([items.node_begin, items.node_end, items.node_group]),
        np.concatenate([queries[listed], zeros]).astype(np.int32),
        offsets.astype(np.int32),
        by_query.astype(np.int32),
        num_parts,
    )
