"""From block tables to a node list, in one call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.forest.items import (
    BEGIN,
    BLOCK,
    COUNT,
    END,
    GROUP,
    NODE_WIDTH,
    QUERY,
    count_readers,
    cut_nodes,
    list_items,
    list_parts,
)
from forkdecode_kernels.cpu.forest.nodes import column_nodes, earliest_seen, last_group
from forkdecode_kernels.cpu.forest.rows import (
    COLUMNS,
    CONTEXT,
    QUERIES,
    ROWS,
    START,
    TRUNK,
    fold_groups,
    order_groups,
    order_rows,
)
from forkdecode_kernels.cpu.selection.jit import entry, kernel

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


@entry
def list_forest(
    blocks: I32,
    groups: I64,
    num_tokens: int,
    block_size: int,
    small: int,
    whole: int,
    group: int,
    kv_heads: int,
    processors: int,
    split: int,
    window: int,
) -> tuple[I32, I32, I32, int, I64, I64, I32, I32, I32, int]:
    """See forkdecode_kernels.forest, whose Forest this returns; split, window: 0 for none."""
    count = groups.shape[1]
    places, n = np.zeros(count + 1, np.int64), 0
    for i in range(count):
        for field in range(6):
            if groups[field, i] < 0:
                raise ValueError("groups: must be 0 or more")
        if groups[START, i] + groups[ROWS, i] * groups[QUERIES, i] > num_tokens:
            raise ValueError("groups: query tokens beyond num_tokens")
        n += groups[ROWS, i]
        places[i + 1] = places[i] + groups[TRUNK, i] + groups[ROWS, i] * groups[COLUMNS, i]
    if places[count] != blocks.shape[0]:
        raise ValueError("blocks: not as many as the groups have")
    order, between = np.empty(count, np.int32), np.empty(count + 1, np.int32)
    order_groups(blocks, groups, places, split // block_size, order, between)
    if not split:
        fold_groups(between, order, groups, block_size, group)
    rows, owns = np.empty((2, n), np.int32), np.empty((2, n), np.int32)
    shared, queries_before = np.empty(n + 1, np.int32), np.zeros(n + 1, np.int32)
    order_rows(blocks, groups, places, order, between, rows, owns, shared)
    for i in range(n):
        queries_before[i + 1] = queries_before[i] + groups[QUERIES, rows[0, i]]
    found, by_begin = column_nodes(shared, rows, owns, queries_before, groups, block_size, group)
    nodes, num_nodes = _token_nodes(
        found, by_begin, rows, owns, queries_before, groups, places, block_size, window
    )
    queries, positions = _queries(rows, groups, queries_before[n], num_tokens)
    step, num_small, num_large = cut_nodes(
        nodes, num_nodes, groups, small, whole, kv_heads, processors, split
    )
    readers, several = count_readers(nodes, num_nodes, queries.shape[0])
    num_items = num_small + num_large
    table, spans = np.empty((num_items, 8), np.int32), np.empty((3, num_items), np.int64)
    needs = np.zeros(queries.shape[0] + 1, np.int32)
    parts = list_items(nodes, num_nodes, groups, step, block_size, num_small, several, table, spans, needs)
    merged, offsets, merge_parts = list_parts(
        nodes, num_nodes, several, needs, readers, parts, queries, num_tokens
    )
    ranges = _ranges(nodes, num_nodes)
    return queries, positions, table, num_small, spans, ranges, merged, offsets, merge_parts, parts


@kernel
def _token_nodes(
    found: I32,
    by_begin: I32,
    rows: I32,
    owns: I32,
    queries_before: I32,
    groups: I64,
    places: I64,
    block_size: int,
    window: int,
) -> tuple[I32, int]:
    """Nodes of items.py, from rows and columns in this order, and how many: none of blocks that no query of
    theirs sees."""
    nodes, kept = np.empty((NODE_WIDTH, by_begin.shape[0]), np.int32), 0
    for i in by_begin:
        first, last, begin, end = found[0, i], found[1, i], found[2, i], found[3, i]
        group = rows[0, first]
        # A group's first row lies behind its trunk: there what all rows share goes on.
        block = places[group] + begin
        if begin >= groups[TRUNK, group]:
            block += rows[1, first] * groups[COLUMNS, group]
        if window:
            seen = earliest_seen(groups, first, last, rows, owns, window) // block_size
            if seen > begin:
                block += seen - begin
                begin = seen
        if begin < end:
            nodes[QUERY, kept] = queries_before[first]
            nodes[COUNT, kept] = queries_before[last] - queries_before[first]
            nodes[BLOCK, kept] = block
            nodes[GROUP, kept] = last_group(first, last, rows, owns)
            nodes[BEGIN, kept], nodes[END, kept] = begin * block_size, end * block_size
            kept += 1
    return nodes, kept


@kernel
def _ranges(nodes: I32, count: int) -> I64:
    """[3, count]: begin, end and group of the nodes."""
    ranges = np.empty((3, count), np.int64)
    for i in range(count):
        ranges[0, i], ranges[1, i], ranges[2, i] = nodes[BEGIN, i], nodes[END, i], nodes[GROUP, i]
    return ranges


@kernel
def _queries(rows: I32, groups: I64, count: int, num_tokens: int) -> tuple[I32, I32]:
    """Query tokens in the forest's order, and the position of every token."""
    queries, positions, at = np.empty(count, np.int32), np.zeros(num_tokens, np.int32), 0
    for i in range(rows.shape[1]):
        group = rows[0, i]
        token, each = groups[START, group] + rows[1, i], groups[QUERIES, group]
        first = groups[CONTEXT, group] - each
        for offset in range(each):
            queries[at] = token + offset
            positions[token + offset] = first + offset
            at += 1
    return queries, positions
