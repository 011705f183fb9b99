from __future__ import annotations

import numpy as np
import pytest

from forkdecode.kv import BlockAccountingError, BlockPool, OutOfBlocksError
from forkdecode.step import I32


def ids(*blocks: int) -> I32:
    return np.array(blocks, np.int32)


class Holds:
    def __init__(self, *blocks: int) -> None:
        self.blocks = ids(*blocks)

    def references(self) -> I32:
        return self.blocks


def test_a_fresh_pool_hands_out_a_run_of_lowest_ids() -> None:
    pool = BlockPool(8, 16)
    assert pool.allocate(3).tolist() == [0, 1, 2]
    assert pool.allocate(2).tolist() == [3, 4]
    assert (pool.num_free, pool.num_available) == (3, 3)


def test_repeats_count_each() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.allocate(2)
    pool.retain(ids(0, 0, 1))
    pool.check([Holds(*blocks), Holds(0, 0, 1)])
    pool.release(ids(0, 1, 0, 0, 1))
    assert pool.num_free == 4
    pool.check([])


def test_a_table_of_any_shape_is_released_whole() -> None:
    pool = BlockPool(4, 16)
    pool.release(pool.allocate(4).reshape(2, 2))
    pool.check([])


def test_times_counts_each_entry_so_often() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.allocate(2)
    pool.retain(blocks, ids(3, 1))
    assert pool.ref_count.tolist() == [4, 2, 0, 0]
    pool.release(blocks, ids(4, 1))
    assert pool.ref_count.tolist() == [0, 1, 0, 0]
    assert pool.num_free == 3


def test_too_many_is_refused_whole() -> None:
    pool = BlockPool(4, 16)
    pool.allocate(3)
    with pytest.raises(OutOfBlocksError, match="2 KV blocks are needed and 1 are available"):
        pool.allocate(2)
    assert pool.num_free == 1


def test_releasing_more_than_is_held_changes_nothing() -> None:
    pool = BlockPool(4, 16)
    pool.allocate(2)
    with pytest.raises(BlockAccountingError, match="fewer holders"):
        pool.release(ids(0, 1, 1))
    pool.check([Holds(0, 1)])


def test_a_free_block_cannot_be_retained() -> None:
    pool = BlockPool(4, 16)
    with pytest.raises(BlockAccountingError, match="free block"):
        pool.retain(ids(2))
    pool.check([])


def test_check_names_the_blocks_that_disagree() -> None:
    pool = BlockPool(4, 16)
    pool.allocate(2)
    with pytest.raises(BlockAccountingError, match=r"ref_count of blocks \[1\] is \[1\], should be \[0\]"):
        pool.check([Holds(0)])


def test_check_sees_a_held_block_that_is_free() -> None:
    pool = BlockPool(2, 16)
    blocks = pool.allocate(1)
    pool.ref_count[blocks] = 0
    pool.ref_count[1] = 1
    with pytest.raises(BlockAccountingError, match="free of blocks"):
        pool.check([Holds(1)])


def test_idle_blocks_are_evicted_in_the_order_of_release() -> None:
    pool, forgotten = BlockPool(4, 16), []
    pool.attach(lambda blocks: forgotten.extend(blocks.tolist()))
    pool.adopt(pool.allocate(4))
    pool.release(ids(2, 0))
    pool.release(ids(3))
    assert (pool.num_free, pool.num_evictable, pool.num_available) == (0, 3, 3)
    pool.allocate(2)
    assert forgotten == [2, 0]
    pool.check([Holds(1, 1), Holds(3), Holds(0, 2)])


def test_a_block_in_use_is_never_evicted() -> None:
    pool = BlockPool(3, 16)
    pool.attach(lambda blocks: None)
    pool.adopt(pool.allocate(2))
    pool.release(ids(0, 1))
    pool.retain(ids(1))
    assert pool.num_available == 2
    with pytest.raises(OutOfBlocksError):
        pool.allocate(3)
    assert 1 not in pool.allocate(2).tolist()


def test_what_a_copy_reads_is_not_allocated_in_the_same_step() -> None:
    pool = BlockPool(2, 16)
    blocks = pool.allocate(1)
    pool.protect(blocks)
    pool.release(blocks)
    assert pool.num_available == 1
    pool.check([])
    pool.begin_step()
    assert pool.num_available == 2
    pool.check([])


def test_what_a_copy_reads_is_not_evicted_in_the_same_step() -> None:
    pool = BlockPool(1, 16)
    pool.attach(lambda blocks: None)
    blocks = pool.allocate(1)
    pool.adopt(blocks)
    pool.protect(blocks)
    pool.release(blocks)
    pool.touch(blocks)
    assert pool.num_evictable == 0
    pool.begin_step()
    assert pool.num_evictable == 1
    pool.check([Holds(0)])


def test_a_block_set_aside_and_retaken_stays_taken() -> None:
    pool = BlockPool(1, 16)
    pool.attach(lambda blocks: None)
    blocks = pool.allocate(1)
    pool.adopt(blocks)
    pool.protect(blocks)
    pool.release(blocks)
    pool.retain(blocks)
    pool.begin_step()
    assert pool.num_available == 0
    pool.check([Holds(0, 0)])
