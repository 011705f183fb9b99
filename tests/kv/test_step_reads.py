"""Bytes that a step's attention would read without sharing: by hand, and against what each row sees."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.kv import StepReads

NO_WINDOW = ((None, 1),)


def test_one_row_reads_its_context_and_is_never_copied() -> None:
    for beams in (False, True):
        reads = StepReads(NO_WINDOW, 4)
        reads.rows([1], [10], [beams])
        assert reads.unshared() == (10, 10)


def test_several_rows_read_a_context_each_and_beams_are_copied_too() -> None:
    reads = StepReads(NO_WINDOW, 4)
    reads.rows([2, 3], [11, 5], [False, True])
    assert reads.unshared() == (22 + 3 * 15, 22 + 15)


def test_bytes_are_tokens_times_layers_keys_and_values_heads_dimensions_and_element() -> None:
    """3 layers, 2 kv heads of 8, bfloat16."""
    token = 3 * 2 * 2 * 8 * 2
    reads = StepReads(((None, token),), 4)
    reads.rows([2], [11], [True])
    assert reads.unshared() == (66 * token, 22 * token)


def test_a_chunk_of_a_prompt_reads_its_context_once_whatever_is_counted() -> None:
    reads = StepReads(NO_WINDOW, 4)
    reads.chunk(4, 9)
    assert reads.unshared() == (9, 9)
    reads.chunk(0, 3)
    assert reads.unshared() == (12, 12)


@pytest.mark.parametrize(
    ("window", "paged"),
    [
        (100, 22),
        (9, 22),  # the query at position 10 sees from position 2 on: its block is read whole
        (7, 14),  # from position 4 on
        (3, 6),  # from position 8 on
    ],
)
def test_a_window_reads_from_the_first_block_that_it_sees(window: int, paged: int) -> None:
    reads = StepReads(((window, 1),), 4)
    reads.rows([2], [11], [True])
    reads.chunk(10, 11)
    assert reads.unshared() == (3 * paged + paged // 2, paged + paged // 2)


def test_layers_of_several_windows_are_added_up() -> None:
    reads = StepReads(((None, 10), (3, 1)), 4)
    reads.rows([2], [11], [False])
    assert reads.unshared() == (220 + 6, 220 + 6)


def test_known_tokens_of_a_row_read_its_context_together() -> None:
    reads = StepReads(((5, 1),), 4)
    reads.rows([2], [11], [False], computed=3)
    assert reads.unshared() == (2 * 7, 2 * 7)  # the first of them, at position 8, sees from 4 on


def test_a_step_of_nothing_reads_nothing() -> None:
    assert StepReads(NO_WINDOW, 4).unshared() == (0, 0)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.integers(1, 40), st.booleans(), st.integers(1, 5)),
        max_size=4,
    ),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), max_size=3),
    st.sampled_from([1, 2, 4]),
    st.none() | st.integers(1, 30),
)
def test_the_counts_are_those_of_the_slots_that_rows_see(
    groups: list[tuple[int, int, bool, int]],
    chunks: list[tuple[int, int]],
    size: int,
    window: int | None,
) -> None:
    def slots(first: int, last: int) -> int:
        """Of the blocks that queries at first .. last see, up to the last one."""
        seen = [i for i in range(last + 1) if window is None or i > first - window]
        return last + 1 - min(seen) // size * size

    reads, paged, copied = StepReads(((window, 1),), size), 0, 0
    for rows, length, beams, computed in groups:
        computed = min(computed, length)
        reads.rows([rows], [length], [beams], computed)
        paged += rows * slots(length - computed, length - 1)
        copied += rows * slots(length - computed, length - 1) if beams and rows > 1 else 0
    for start, count in chunks:
        reads.chunk(start, start + count)
        paged += slots(start, start + count - 1)
    assert reads.unshared() == (paged + 2 * copied, paged)
