"""All rows of a step in an order in which sharers are neighbours."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.forest.joined import WORKSPACE, sort_rows
from forkdecode_kernels.cpu.forest.order import sort_lists
from forkdecode_kernels.cpu.forest.tree import build_tree, fold
from forkdecode_kernels.cpu.selection.jit import kernel

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

START, ROWS, QUERIES, CONTEXT, TRUNK, COLUMNS = range(6)
"""Rows of `groups`, see forkdecode_kernels.forest."""


@kernel
def order_groups(blocks: I32, groups: I64, places: I64, split_blocks: int, order: I32, shared: I32) -> None:
    """Fills order [G], groups whose trunks begin alike beside each other, or as they came where none do, and
    shared [G + 1] with how many blocks each has in common with the one before it, -1 at both ends; with
    split_blocks only multiples of this. places [G + 1]: where each group's blocks begin."""
    n = order.shape[0]
    sort_lists(blocks, places, groups[TRUNK], order, shared[:n])
    alike = False
    for i in range(1, n):
        alike = alike or shared[i] > 0
        if split_blocks:
            shared[i] = shared[i] // split_blocks * split_blocks
    if not alike:
        for i in range(n):
            order[i] = i
    shared[0] = shared[n] = -1


@kernel
def fold_groups(shared: I32, order: I32, groups: I64, tokens: int, group: int) -> None:
    """Takes from `shared` of order_groups what does not pay."""
    n = order.shape[0]
    queries = np.zeros(n + 1, np.int32)
    owns = np.zeros((2, n), np.int32)
    for i in range(n):
        queries[i + 1] = queries[i] + groups[ROWS, order[i]] * groups[QUERIES, order[i]]
        owns[1, i] = n + 1
    runs, inside, ends = np.empty((5, n), np.int32), np.empty(n + 1, np.int32), np.empty(n, np.int32)
    count = build_tree(shared, runs, inside)
    fold(runs, count, queries, owns, tokens, group, ends)
    for i in range(1, n):
        shared[i] = ends[inside[i]] if inside[i] >= 0 else 0


@kernel
def order_rows(
    blocks: I32, groups: I64, places: I64, order: I32, between: I32, rows: I32, owns: I32, shared: I32
) -> None:
    """Fills rows [2, n], of each row of the order its group and its row of that group's tails; owns [2, n],
    where its group begins and ends; shared [n + 1], as order_groups for rows."""
    most = columns_before = 0
    for i in range(order.shape[0]):
        most = max(most, groups[ROWS, i])
    size = 16
    while size < 2 * most:
        size *= 2
    work, seen = np.empty((WORKSPACE, most), np.int32), np.zeros(size, np.int64)
    begin = 0
    for rank in range(order.shape[0]):
        group = order[rank]
        count, trunk, columns = groups[ROWS, group], groups[TRUNK, group], groups[COLUMNS, group]
        end = begin + count
        if count:
            columns_before = sort_rows(
                blocks,
                places[group] + trunk,
                columns,
                rows[1, begin:end],
                shared[begin:end],
                work,
                seen,
                columns_before,
            )
        for i in range(begin, end):
            rows[0, i], owns[0, i], owns[1, i] = group, begin, end
            shared[i] += trunk
        shared[begin] = between[rank]
        begin = end
    shared[begin] = -1
