"""Nodes cut into work items, and the parts that queries are merged from."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.forest.rows import CONTEXT
from forkdecode_kernels.cpu.selection.jit import kernel

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

LEAST_SPLIT = 256
"""Tokens: below this the merge of a part costs as much as it saves."""

QUERY, COUNT, BLOCK, BEGIN, END, GROUP = range(6)
"""Rows of nodes and items: first entry in the query list and how many, first entry in the block list, begin
and end in tokens of the sequence, which may lie behind the context, and a group that reads it."""


@kernel
def cut_nodes(
    nodes: I64,
    num_nodes: int,
    groups: I64,
    block_size: int,
    small: int,
    whole: int,
    kv_heads: int,
    processors: int,
    split: int,
) -> tuple[I64, NDArray[np.bool_]]:
    """Items [6, n] and which of them are for the large tile shape: every node, by queries into tiles and by
    tokens into splits; tiles of one split lie side by side, so that the second finds the blocks in the cache.

    small, whole: queries that a tile of either shape holds. split: tokens that every node is split at, all in
    the large shape; 0 for splits that give each of the processors two items.
    """
    n, step, total = num_nodes, split, 0
    if not split:
        even = 0
        for i in range(n):
            length = min(nodes[END, i], groups[CONTEXT, nodes[GROUP, i]]) - nodes[BEGIN, i]
            width = whole if nodes[COUNT, i] > small else small
            even += (nodes[COUNT, i] + width - 1) // width * length
        step = int(max(even * kv_heads / (2 * processors), 1.0))
        step = (step + LEAST_SPLIT - 1) // LEAST_SPLIT * LEAST_SPLIT
    for i in range(n):
        width = whole if split or nodes[COUNT, i] > small else small
        end = min(nodes[END, i], groups[CONTEXT, nodes[GROUP, i]])
        origin = nodes[BEGIN, i] // step * step if split else nodes[BEGIN, i]
        total += (nodes[COUNT, i] + width - 1) // width * ((end - origin + step - 1) // step)
    items, large, at = np.empty((6, total), np.int64), np.empty(total, np.bool_), 0
    step_blocks = step // block_size
    for i in range(n):
        width = whole if split or nodes[COUNT, i] > small else small
        begin, cap, count = nodes[BEGIN, i], nodes[END, i], nodes[COUNT, i]
        end = min(cap, groups[CONTEXT, nodes[GROUP, i]])
        after = begin // step * step if split else begin
        block = nodes[BLOCK, i] - (begin - after) // block_size
        while after < end:
            for tile in range(0, count, width):
                items[QUERY, at], items[COUNT, at] = nodes[QUERY, i] + tile, min(width, count - tile)
                items[BLOCK, at], items[BEGIN, at] = max(block, nodes[BLOCK, i]), max(after, begin)
                items[END, at] = after + step if after + step < end else cap
                items[GROUP, at] = nodes[GROUP, i]
                large[at] = split > 0 or count > small
                at += 1
            after += step
            block += step_blocks
    return items, large


@kernel
def number_parts(items: I64, num_queries: int) -> tuple[I64, I64, int]:
    """Of each item its first part, or -1 where it alone reads each of its queries and writes them itself; how
    many items read each query, where several do; and the number of parts."""
    n = items.shape[1]
    readers = np.zeros(num_queries + 1, np.int64)
    for i in range(n):
        readers[items[QUERY, i]] += 1
        readers[items[QUERY, i] + items[COUNT, i]] -= 1
    several = np.zeros(num_queries + 1, np.int64)
    for i in range(num_queries):
        several[i + 1] = several[i] + (readers[i] > 1)
        readers[i + 1] += readers[i]
    part, count = np.empty(n, np.int64), 0
    for i in range(n):
        if several[items[QUERY, i] + items[COUNT, i]] > several[items[QUERY, i]]:
            part[i] = count
            count += items[COUNT, i]
        else:
            part[i] = -1
    return part, readers, count


@kernel
def list_parts(
    items: I64, part: I64, readers: I64, count: int, queries: I32, num_tokens: int
) -> tuple[I32, I32, I32]:
    """merged, merge_offsets, merge_parts of the node list. A query's parts are in the order of its tokens."""
    n = queries.shape[0]
    ends, untouched = _parts_of_queries(items, part, n), np.empty(num_tokens, np.bool_)
    for token in range(num_tokens):
        untouched[token] = True
    listed = 0
    for i in range(n):
        listed += ends[i + 1] > 0
        ends[i + 1] += ends[i]
        if readers[i] > 0:
            untouched[queries[i]] = False
    for token in range(num_tokens):
        listed += untouched[token]
    merged, offsets = np.empty(listed, np.int32), np.empty(listed + 1, np.int32)
    listed = offsets[0] = 0
    for i in range(n):
        if ends[i + 1] > ends[i]:
            merged[listed], offsets[listed + 1] = queries[i], ends[i + 1]
            listed += 1
    for token in range(num_tokens):
        if untouched[token]:
            merged[listed], offsets[listed + 1] = token, count
            listed += 1
    return merged, offsets, _by_query(items, part, ends, count)


@kernel
def _parts_of_queries(items: I64, part: I64, num_queries: int) -> I64:
    """[num_queries + 1]: of each query's parts how many there are, one place behind it."""
    counts = np.zeros(num_queries + 1, np.int64)
    for i in range(items.shape[1]):
        if part[i] >= 0:
            for at in range(items[QUERY, i], items[QUERY, i] + items[COUNT, i]):
                counts[at + 1] += 1
    return counts


@kernel
def _by_query(items: I64, part: I64, ends: I64, count: int) -> I32:
    """[count]: each query's parts, from ends[query] on, which moves behind them."""
    parts = np.empty(count, np.int32)
    for i in range(items.shape[1]):
        if part[i] >= 0:
            for offset in range(items[COUNT, i]):
                at = items[QUERY, i] + offset
                parts[ends[at]] = part[i] + offset
                ends[at] += 1
    return parts


@kernel
def item_table(items: I64, large: NDArray[np.bool_], part: I64, groups: I64) -> tuple[I32, I64, int]:
    """The items as the node list has them, [n, 8], small tiles first; of each in that order begin, end and
    group, [3, n]; how many are small."""
    n, small = items.shape[1], 0
    for i in range(n):
        small += not large[i]
    table, spans = np.zeros((n, 8), np.int32), np.empty((3, n), np.int64)
    at_small, at_large = 0, small
    for i in range(n):
        if large[i]:
            at = at_large
            at_large += 1
        else:
            at = at_small
            at_small += 1
        begin, end, group = items[BEGIN, i], items[END, i], items[GROUP, i]
        table[at, 0], table[at, 1], table[at, 2] = items[QUERY, i], items[COUNT, i], items[BLOCK, i]
        table[at, 3], table[at, 4], table[at, 5] = min(end, groups[CONTEXT, group]) - begin, begin, part[i]
        spans[0, at], spans[1, at], spans[2, at] = begin, end, group
    return table, spans, small
