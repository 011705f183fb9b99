"""The nodes of a step: runs of rows that read the same blocks, and what each row has for itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.forest.rows import COLUMNS, CONTEXT, QUERIES, TRUNK
from forkdecode_kernels.cpu.forest.tree import AROUND, CLOSED, FIRST, LAST, build_tree, fold
from forkdecode_kernels.cpu.selection.jit import kernel

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


@kernel
def column_nodes(
    shared: I32, rows: I32, owns: I32, queries: I32, groups: I64, tokens: int, group: int
) -> tuple[I32, I32]:
    """Nodes [4, >= m]: first row, row behind the last, begin and end in columns; and their order [m]: those
    that begin earlier first; of those that begin together, runs before rows' own blocks, and both by rows."""
    n = shared.shape[0] - 1
    runs, inside, ends = np.empty((5, n), np.int32), np.empty(n + 1, np.int32), np.empty(n, np.int32)
    count = build_tree(shared, runs, inside)
    fold(runs, count, queries, owns, tokens, group, ends)
    found, kept = np.empty((4, count + n), np.int32), 0
    for run in _by_first(runs, count, n):
        around = runs[AROUND, run]
        begin = ends[around] if around >= 0 else 0
        if ends[run] > begin:
            found[0, kept], found[1, kept] = runs[FIRST, run], runs[LAST, run]
            found[2, kept], found[3, kept] = begin, ends[run]
            kept += 1
    above = 0
    for row in range(n):
        below = ends[inside[row + 1]] if inside[row + 1] >= 0 else 0
        begin, end = max(above, below), groups[TRUNK, rows[0, row]] + groups[COLUMNS, rows[0, row]]
        above = below
        if begin < end:
            found[0, kept], found[1, kept], found[2, kept], found[3, kept] = row, row + 1, begin, end
            kept += 1
    return found, _by_begin(found, kept)


@kernel
def _by_first(runs: I32, count: int, n: int) -> I32:
    """[count]: the runs by their first list, the outer ones first."""
    places = np.zeros(n + 1, np.int32)
    for run in range(count):
        places[runs[FIRST, run] + 1] += 1
    for i in range(n):
        places[i + 1] += places[i]
    found = np.empty(count, np.int32)
    for i in range(count - 1, -1, -1):
        run = runs[CLOSED, i]
        found[places[runs[FIRST, run]]] = run
        places[runs[FIRST, run]] += 1
    return found


@kernel
def _by_begin(nodes: I32, n: int) -> I32:
    """The order of the first n of nodes [4, >= n] by row 2, those with equal ones as they are: by its bytes,
    the least first."""
    order, other = np.empty(n, np.int32), np.empty(n, np.int32)
    most = shift = 0
    for i in range(n):
        order[i] = i
        most = max(most, nodes[2, i])
    while most >> shift:
        places = np.zeros(257, np.int32)
        for i in range(n):
            places[((nodes[2, i] >> shift) & 255) + 1] += 1
        for i in range(256):
            places[i + 1] += places[i]
        for i in range(n):
            digit = (nodes[2, order[i]] >> shift) & 255
            other[places[digit]] = order[i]
            places[digit] += 1
        order, other = other, order
        shift += 8
    return order


@kernel
def last_group(first: int, last: int, rows: I32, owns: I32) -> int:
    """The highest group that rows first .. last are of."""
    found, row = 0, first
    while row < last:
        found = max(found, rows[0, row])
        row = owns[1, row]
    return found


@kernel
def earliest_seen(groups: I64, first: int, last: int, rows: I32, owns: I32, window: int) -> int:
    """The first position that a query of rows first .. last sees."""
    earliest, row = 1 << 62, first
    while row < last:
        group = rows[0, row]
        earliest = min(earliest, groups[CONTEXT, group] - groups[QUERIES, group] - window + 1)
        row = owns[1, row]
    return earliest
