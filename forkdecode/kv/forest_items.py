"""Nodes cut into work items for two tile shapes, and the list of parts that each query is merged from."""

from __future__ import annotations

from dataclasses import dataclass
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

    def lengths(self, contexts: I64) -> I64:
        """Tokens of each item, for contexts [groups]."""
        return np.minimum(self.end, contexts[self.group]) - self.begin

    def node_tokens(self, contexts: I64) -> I64:
        """Tokens of each node."""
        return np.minimum(self.node_end, contexts[self.node_group]) - self.node_begin


@dataclass(frozen=True, slots=True)
class ListedItems:
    """table [items, 8]: the fields of forkdecode_kernels.node_list, lengths left open."""

    table: I32
    large: NDArray[np.bool_]
    merged: I32
    merge_offsets: I32
    merge_parts: I32
    num_parts: int

    def split(self, lengths: I64) -> tuple[I32, I32]:
        """The items of the small and of the large tile shape."""
        table = self.table.copy()
        table[:, 3] = lengths
        return table[~self.large], table[self.large]


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


def list_items(items: Items, queries: I32, num_tokens: int, shape: ItemShape) -> ListedItems:
    """Numbers the parts. A query that one item alone reads is written by it, without a part."""
    count = len(queries)
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

    table = np.zeros((len(items.first), 8), np.int32)
    for column, values in ((0, items.first), (1, items.count), (2, items.block), (4, items.begin), (5, part)):
        table[:, column] = values
    return ListedItems(
        table,
        items.large,
        np.concatenate([queries[listed], zeros]).astype(np.int32),
        offsets.astype(np.int32),
        by_query.astype(np.int32),
        num_parts,
    )
