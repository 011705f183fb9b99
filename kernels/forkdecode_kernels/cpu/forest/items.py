"""Nodes cut into work items, and the parts that queries are merged from."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.forest.rows import CONTEXT
from forkdecode_kernels.cpu.selection.jit import kernel

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U = np.uint64
"""Of indices: what is never negative need not be looked at for being counted from the end."""

LEAST_SPLIT = 256
"""Tokens: below this the merge of a part costs as much as it saves."""

QUERY, COUNT, BLOCK, BEGIN, END, GROUP, LARGE, WIDTH, ORIGIN, SPLITS, PART = range(11)
"""Rows of nodes: first entry in the query list and how many, first entry in the block list, begin and end in
tokens of the sequence, which may lie behind the context, and the last group that reads it. As it is cut into
items: whether for the large tile shape, queries of each, the token from which splits are counted, how many of
these there are, and the first part."""
NODE_WIDTH = 11


@kernel
def cut_nodes(
    nodes: I32, n: int, groups: I64, small: int, whole: int, kv_heads: int, processors: int, split: int
) -> tuple[int, int, int]:
    """Fills LARGE, WIDTH, ORIGIN and SPLITS of the first n nodes. Returns tokens of a split, and how many
    items there are for the small and for the large tile shape.

    small, whole: queries that a tile of either shape holds. split: tokens that every node is split at, all in
    the large shape; 0 for splits that give each of the processors two items.
    """
    step = split or _even_step(nodes, n, groups, small, whole, kv_heads, processors)
    num_small = num_large = origin = 0
    for i in range(n):
        begin, count = nodes[BEGIN, i], nodes[COUNT, i]
        end = min(nodes[END, i], groups[CONTEXT, nodes[GROUP, i]])
        large = split > 0 or count > small
        width = whole if large else small
        if not split:
            origin = begin
        elif not origin <= begin < origin + step:  # Mostly it is the last one's: divisions take time.
            origin = begin // step * step
        tiles = 1 if count <= width else (count + width - 1) // width
        splits = 1 if end - origin <= step else (end - origin + step - 1) // step
        nodes[LARGE, i], nodes[WIDTH, i], nodes[ORIGIN, i], nodes[SPLITS, i] = large, width, origin, splits
        if large:
            num_large += tiles * splits
        else:
            num_small += tiles * splits
    return step, num_small, num_large


@kernel
def _even_step(
    nodes: I32, n: int, groups: I64, small: int, whole: int, kv_heads: int, processors: int
) -> int:
    total = 0
    for i in range(n):
        length = min(nodes[END, i], groups[CONTEXT, nodes[GROUP, i]]) - nodes[BEGIN, i]
        count = nodes[COUNT, i]
        width = whole if count > small else small
        total += length if count <= width else (count + width - 1) // width * length
    step = int(max(total * kv_heads / (2 * processors), 1.0))
    return (step + LEAST_SPLIT - 1) // LEAST_SPLIT * LEAST_SPLIT


@kernel
def count_readers(nodes: I32, n: int, num_queries: int) -> tuple[I32, I32]:
    """[num_queries + 1] each: how many items read each query, and how many before it are read by several."""
    readers, several = np.zeros(num_queries + 1, np.int32), np.empty(num_queries + 1, np.int32)
    for i in range(n):
        first, splits = nodes[QUERY, i], nodes[SPLITS, i]
        readers[U(first)] += splits
        readers[U(first + nodes[COUNT, i])] -= splits
    several[0] = 0
    for i in range(num_queries):
        several[i + 1] = several[i] + (readers[i] > 1)
        readers[i + 1] += readers[i]
    return readers, several


@kernel
def list_items(
    nodes: I32,
    n: int,
    groups: I64,
    step: int,
    block_size: int,
    num_small: int,
    several: I32,
    table: I32,
    spans: I64,
    needs: I32,
) -> int:
    """Every node by tokens into splits and by queries into tiles; tiles of one split lie side by side, so
    that the second finds the blocks in the cache. Items of the small tile shape come first; parts are
    numbered as the nodes come. An item that alone reads each of its queries writes them itself: part -1.

    Fills table [items, 8] as the node list has it; spans [3, items]: of each begin, end and group; PART of
    the nodes; adds to needs [queries + 1]: from how many parts more each query is merged than the one before.
    Returns how many parts there are.
    """
    at_small, at_large, part, step_blocks = 0, num_small, 0, step // block_size
    for i in range(n):
        first, count, width, splits = nodes[QUERY, i], nodes[COUNT, i], nodes[WIDTH, i], nodes[SPLITS, i]
        begin, cap, group, block = nodes[BEGIN, i], nodes[END, i], nodes[GROUP, i], nodes[BLOCK, i]
        context, start, stop = groups[CONTEXT, group], begin, nodes[ORIGIN, i] + step
        after = block - (begin - nodes[ORIGIN, i]) // block_size if splits > 1 else block
        at = at_large if nodes[LARGE, i] else at_small
        nodes[PART, i] = part
        for split in range(splits):
            end = stop if split + 1 < splits else cap
            last = first
            while last < first + count:  # A range with a step would divide.
                tile, last = last, min(last + width, first + count)
                own = -1
                if several[U(last)] > several[U(tile)]:
                    own = part
                    part += last - tile
                    needs[U(tile)] += 1
                    needs[U(last)] -= 1
                row = U(at)
                table[row, 0], table[row, 1], table[row, 2] = tile, last - tile, block
                table[row, 3], table[row, 4], table[row, 5] = min(end, context) - start, start, own
                table[row, 6] = table[row, 7] = 0
                spans[0, row], spans[1, row], spans[2, row] = start, end, group
                at += 1
            after += step_blocks
            block, start, stop = after, stop, stop + step
        if nodes[LARGE, i]:
            at_large = at
        else:
            at_small = at
    return part


@kernel
def list_parts(
    nodes: I32, n: int, several: I32, needs: I32, readers: I32, count: int, queries: I32, num_tokens: int
) -> tuple[I32, I32, I32]:
    """merged, merge_offsets, merge_parts of the node list. A query's parts are in the order of its tokens.

    needs: of list_items; becomes where each query's parts begin, and then where they end.
    """
    untouched, listed, end, parts = np.ones(num_tokens, np.bool_), 0, 0, 0
    for i in range(queries.shape[0]):
        parts += needs[i]
        needs[i] = end
        end += parts
        listed += parts > 0
        untouched[U(queries[i])] = readers[i] == 0
    needs[queries.shape[0]] = end
    for token in range(num_tokens):
        listed += untouched[token]
    merged, offsets = np.empty(listed, np.int32), np.empty(listed + 1, np.int32)
    listed = offsets[0] = 0
    for i in range(queries.shape[0]):
        if needs[i + 1] > needs[i]:
            merged[U(listed)], offsets[U(listed + 1)] = queries[i], needs[i + 1]
            listed += 1
    for token in range(num_tokens):
        if untouched[token]:
            merged[U(listed)], offsets[U(listed + 1)] = token, count
            listed += 1
    return merged, offsets, _by_query(nodes, n, several, needs, count)


@kernel
def _by_query(nodes: I32, n: int, several: I32, ends: I32, count: int) -> I32:
    """[count]: each query's parts, from ends[query] on, which moves behind them."""
    parts = np.empty(count, np.int32)
    for i in range(n):
        first, queries, width, splits = nodes[QUERY, i], nodes[COUNT, i], nodes[WIDTH, i], nodes[SPLITS, i]
        part = nodes[PART, i]
        last = first
        while last < first + queries:
            tile, last = last, min(last + width, first + queries)
            if several[U(last)] > several[U(tile)]:
                # Of a node with several splits all items have parts, one split after another.
                for query in range(tile, last):
                    at = ends[U(query)]
                    for split in range(splits):
                        parts[U(at + split)] = part + split * queries
                    ends[U(query)] = at + splits
                    part += 1
    return parts
