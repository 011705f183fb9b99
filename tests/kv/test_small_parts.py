"""Free lists, occurrences, host slots, copy-on-write by the rule, held rows."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.kv import BlockPool, BlockTable, HostPool, OutOfBlocksError
from forkdecode.kv.copy_on_write import copy_on_write
from forkdecode.kv.free_list import FreeList
from forkdecode.kv.occurrences import Occurrences

IDS = st.lists(st.integers(0, 9), max_size=40)
quick = settings(deadline=None, derandomize=True)


@quick
@given(st.lists(IDS, min_size=1, max_size=4))
def test_occurrences_count_as_a_counter_does(lists: list[list[int]]) -> None:
    occurrences = Occurrences(10)
    for ids in lists:
        array = np.array(ids, np.int32)
        assert occurrences.count(array).tolist() == [Counter(ids)[i] for i in ids]
        last = [i not in ids[at + 1 :] for at, i in enumerate(ids)]
        assert occurrences.one_each(array).tolist() == last


@quick
@given(st.lists(st.integers(0, 6), max_size=20))
def test_free_list_never_hands_out_an_id_twice(counts: list[int]) -> None:
    free, taken = FreeList(12), []
    for count in counts:
        if count <= len(free):
            ids = free.pop(count).tolist()
            assert ids == sorted(ids)
            assert not set(ids) & set(taken)
            taken += ids
        else:
            free.push(np.array(taken[::2], np.int32))
            taken = taken[1::2]
        assert sorted([*free.ids().tolist(), *taken]) == list(range(12))


def test_host_slots_have_one_owner() -> None:
    host = HostPool(4)
    first = host.allocate(3)
    with pytest.raises(OutOfBlocksError, match="2 host slots are needed and 1 are available"):
        host.allocate(2)
    second = host.allocate(1)
    assert sorted([*first.tolist(), *second.tolist()]) == [0, 1, 2, 3]
    host.free(first)
    assert host.num_free == 3
    assert host.allocate(0).tolist() == []


@quick
@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.lists(st.integers(0, 4), max_size=4))
def test_copies_by_the_rule(writers: list[int], others: list[int]) -> None:
    pool = BlockPool(5, 4)
    blocks = pool.allocate(5)
    pool.retain(np.array(writers + others, np.int32))
    pool.release(blocks)
    plan = copy_on_write(pool, np.array(writers, np.int32))
    for block, m in Counter(writers).items():
        c = m + others.count(block)
        copied = [row for row, source in zip(plan.rows, plan.sources, strict=True) if source == block]
        assert len(copied) == (m - 1 if c == m else m)
        assert all(writers[row] == block for row in copied)
        assert (block in plan.foreign.tolist()) == (c > m)


def test_a_held_row_outlives_its_table_and_releases_once() -> None:
    pool = BlockPool(4, 4)
    table = BlockTable.open(pool)
    table.extend(6)
    held = table.hold(0)
    table.release()
    pool.check([held])
    assert pool.num_free == 2
    held.release()
    held.release()
    assert (pool.num_free, held.length) == (4, 0)


@pytest.mark.parametrize("row", [-1, 1])
def test_holding_a_row_that_is_not_there_is_refused(row: int) -> None:
    with pytest.raises(IndexError, match="row: "):
        BlockTable.open(BlockPool(1, 4)).hold(row)
