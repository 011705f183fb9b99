"""Bytes that a step's attention reads: by hand, and against the slots that each row sees, one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.kv import BlockPool, BlockTable, BytesMoved, ForestPlanner, ItemShape, StepReads
from forkdecode.step import I32, DecodeRows

NO_WINDOW = ((None, 1),)


def tokens(reads: StepReads) -> tuple[int, int, int]:
    moved = reads.moved()
    return moved.naive, moved.paged, moved.forest


def forked(pool: BlockPool, prompt: int, rows: int, steps: int = 0) -> BlockTable:
    """`rows` rows after a prompt, that have each gone on for `steps` tokens; the last has no slot yet."""
    table = BlockTable.open(pool)
    table.extend(prompt)
    table.advance(np.zeros(rows, np.int32))
    for _ in range(steps):
        table.extend(1)
    return table


def test_one_row_reads_its_context_and_nothing_twice() -> None:
    pool = BlockPool(8, 4)
    reads = StepReads(NO_WINDOW, pool)
    reads.rows(forked(pool, 10, 1))
    assert tokens(reads) == (30, 10, 10)
    assert reads.moved().gain == 1


def test_two_rows_read_their_trunk_once_and_partial_blocks_each() -> None:
    """10 prompt tokens are two full blocks and 2 tokens of a third, which both copy and go on in."""
    pool = BlockPool(8, 4)
    reads = StepReads(NO_WINDOW, pool)
    reads.rows(forked(pool, 10, 2, steps=1))
    assert tokens(reads) == (3 * 22, 22, 8 + 3 + 3)


def test_beams_after_a_fork_read_what_their_ancestors_wrote_once() -> None:
    """Blocks of 2. Rows 0 and 1 go on alone for two tokens; then both beams come from row 1."""
    pool = BlockPool(16, 2)
    table = forked(pool, 2, 2, steps=2)
    table.advance(np.array([1, 1, 0], np.int32))
    table.extend(1)
    reads = StepReads(NO_WINDOW, pool)
    reads.rows(table)
    # The prompt; a block of row 1, one of row 0; a token of each of three rows.
    assert tokens(reads) == (3 * 15, 15, 2 + 2 + 2 + 3)


def test_bytes_are_tokens_times_layers_keys_and_values_heads_dimensions_and_element() -> None:
    """3 layers, 2 kv heads of 8, bfloat16."""
    pool = BlockPool(8, 4)
    token = 3 * 2 * 2 * 8 * 2
    reads = StepReads(((None, token),), pool)
    reads.rows(forked(pool, 10, 2, steps=1))
    assert reads.moved() == BytesMoved(66 * token, 22 * token, 14 * token)


def test_a_chunk_of_a_prompt_reads_its_context_once_whatever_is_counted() -> None:
    reads = StepReads(NO_WINDOW, BlockPool(8, 4))
    reads.chunk(4, 9)
    assert tokens(reads) == (9, 9, 9)
    reads.chunk(0, 3)
    assert tokens(reads) == (12, 12, 12)


@pytest.mark.parametrize(
    ("window", "paged", "forest"),
    [
        (100, 22, 14),
        (9, 22, 14),  # the query at position 10 sees from position 2 on: its block is read whole
        (7, 14, 10),  # from position 4 on, the second block of the trunk
        (3, 6, 6),  # from position 8 on: tails alone
    ],
)
def test_a_window_reads_from_the_first_block_that_it_sees(window: int, paged: int, forest: int) -> None:
    pool = BlockPool(8, 4)
    reads = StepReads(((window, 1),), pool)
    reads.rows(forked(pool, 10, 2, steps=1))
    assert tokens(reads) == (3 * paged, paged, forest)


def test_a_window_inside_the_tails() -> None:
    """Blocks of 2: three rows that share their first tail block, of which the window sees nothing."""
    pool = BlockPool(32, 2)
    table = forked(pool, 2, 2, steps=2)
    table.advance(np.array([1, 1, 0], np.int32))
    for _ in range(3):
        table.extend(1)
    reads = StepReads(((3, 1),), pool)
    reads.rows(table)  # the query at position 6 sees from 4 on
    assert tokens(reads) == (27, 9, 9)


def test_layers_of_several_windows_are_added_up() -> None:
    pool = BlockPool(8, 4)
    reads = StepReads(((None, 10), (3, 1)), pool)
    reads.rows(forked(pool, 10, 2, steps=1))
    assert tokens(reads) == (3 * (220 + 6), 220 + 6, 140 + 6)


def test_groups_that_share_a_cached_prefix_read_it_once() -> None:
    """One prompt of 10 tokens, and three requests that found its two full blocks in the cache."""
    pool = BlockPool(32, 4)
    first = forked(pool, 10, 2, steps=1)
    others = []
    for length in (9, 13, 10):
        other = BlockTable.open(pool, first.trunk)
        other.extend(length - 8)
        others.append(other)
    lone = forked(pool, 5, 1)
    reads = StepReads(NO_WINDOW, pool)
    for table in (first, *others, lone):
        reads.rows(table)
    paged = 22 + 9 + 13 + 10 + 5
    assert tokens(reads) == (3 * paged, paged, 8 + 6 + 1 + 5 + 2 + 5)


def test_known_tokens_of_a_row_read_its_context_together() -> None:
    pool = BlockPool(32, 4)
    table = forked(pool, 8, 2)
    table.extend(3)
    reads = StepReads(NO_WINDOW, pool)
    reads.rows(table, 3)
    assert tokens(reads) == (3 * 22, 22, 8 + 3 + 3)


def grown(pool: BlockPool, parents: list[int], steps: int, prompt: int, prefix: I32) -> BlockTable:
    table = BlockTable.open(pool, prefix)
    table.extend(prompt)
    for step in range(steps):
        table.advance(np.array(parents, np.int32) % table.rows if step else np.zeros(len(parents), np.int32))
        table.extend(1)
    return table


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 7), min_size=1, max_size=6), st.integers(0, 9), st.integers(1, 9)),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 5),
    st.sampled_from([1, 2, 4]),
    st.none() | st.integers(1, 30),
)
def test_the_counts_are_those_of_the_slots_that_rows_see(
    groups: list[tuple[list[int], int, int]], shared: int, size: int, window: int | None
) -> None:
    pool = BlockPool(2000, size)
    first = BlockTable.open(pool)
    first.extend(shared * size)
    first.promote_single_row()
    tables = [grown(pool, parents, steps, prompt, first.trunk) for parents, steps, prompt in groups]
    reads = StepReads(((window, 1),), pool)
    paged, read = 0, set()
    for table in tables:
        reads.rows(table)
        seen = 0 if window is None else max(0, table.length - window) // size
        for row in range(table.rows):
            paged += table.length - seen * size
            for column, block in enumerate(table.row_blocks(row).tolist()[seen:], seen):
                read |= {(block, i) for i in range(min(size, table.length - column * size))}
    assert tokens(reads) == (3 * paged, paged, len(read))

    decodes, token = [], 0
    for table in tables:
        decodes.append(DecodeRows(token, table.trunk, table.tails, table.length))
        token += table.rows
    # A plan that folds no node reads the same.
    plan = ForestPlanner(ItemShape(size, (4, 16), 0, 2, 8), window=window).plan((), decodes, token)
    assert (plan.row_tokens, plan.node_tokens) == (paged, len(read))
