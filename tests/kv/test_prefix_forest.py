"""Sorted rows and the nodes of their common prefixes, against every pair of rows looked at."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from forkdecode.kv.prefix_forest import internal_nodes, leaf_nodes, sorted_rows
from forkdecode.step import I32, I64, Bools

TABLES = st.lists(
    st.integers(0, 4).flatmap(
        lambda columns: st.lists(
            st.lists(st.integers(0, 3), min_size=columns, max_size=columns), min_size=1, max_size=7
        ).map(lambda rows: np.array(rows, np.int32).reshape(len(rows), columns))
    ),
    max_size=5,
)


def common(a: I32, b: I32) -> int:
    """Leading columns that two rows have in common."""
    for column, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        if x != y:
            return column
    return len(a)


def never(boundary: I64, first: I64, last: I64) -> Bools:
    return np.zeros(len(boundary), np.bool_)


@given(TABLES)
def test_each_table_is_sorted_by_its_rows(tables: list[I32]) -> None:
    for table, found in zip(tables, sorted_rows(tables), strict=True):
        order = sorted(range(len(table)), key=lambda row: (table[row].tolist(), row))
        assert found.order.tolist() == order
        assert found.shared.tolist() == [common(table[a], table[b]) for a, b in pairwise(order)]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30))
def test_nodes_are_the_longest_runs_of_rows_that_share_a_column(lengths: list[int]) -> None:
    """lengths: of the common prefix of each row with the one before it."""
    shared = np.array([-1, *lengths, -1])
    rows = len(lengths) + 1
    inner, left = internal_nodes(shared, np.ones(rows, np.int64), 16, 4, never)
    assert left is shared
    expected: dict[tuple[int, int], list[int]] = {}
    for column in range(max(lengths)):
        first = 0
        for row in range(1, rows + 1):
            if shared[row] <= column:
                if row - first > 1:
                    expected.setdefault((first, row), []).append(column)
                first = row
    found = {(a, b): list(range(begin, end)) for a, b, begin, end in inner.table.T.tolist()}
    assert found == expected
    assert inner.table.shape[1] == len(found)
    leaves = leaf_nodes(shared, np.full(rows, 9))
    assert leaves.table.T.tolist() == [[r, r + 1, max(shared[r], shared[r + 1], 0), 9] for r in range(rows)]


def test_short_nodes_are_left_out_where_they_may_be() -> None:
    """Pairs that share one column of 4 tokens: two queries of 4 heads pay from 16 tokens on."""
    shared = np.array([-1, 1, 0, 1, -1])

    def first_pair(boundary: I64, first: I64, last: I64) -> Bools:
        assert boundary.tolist() in ([1, 3], [3])
        assert list(zip(first.tolist(), last.tolist(), strict=True))[-1] == (2, 4)
        return last <= 2

    inner, left = internal_nodes(shared, np.ones(4, np.int64), 4, 4, first_pair)
    assert inner.table.T.tolist() == [[2, 4, 0, 1]]
    assert left.tolist() == [-1, 0, 0, 1, -1]
