from __future__ import annotations

import numpy as np
import pytest

from forkdecode.kv import BlockPool, BlockTable, OutOfBlocksError, PrefixCache
from forkdecode.step import I32


def tree(pool: BlockPool) -> BlockTable:
    """Two full blocks shared by three rows, then rows 0 and 1 part from row 2, then from each other."""
    table = BlockTable.open(pool)
    table.extend(4)
    table.advance(np.zeros(2, np.int32))
    table.extend(2)
    table.advance(np.array([0, 0, 1], np.int32))
    table.extend(1)
    return table


def test_each_unique_block_is_computed_once() -> None:
    image = tree(BlockPool(16, 2)).image()
    assert (image.num_trunk, image.rows, image.length) == (2, 3, 7)
    assert image.tails.tolist() == [[2, 4], [2, 5], [3, 6]]
    assert image.segments() == [(0, 0, 7), (1, 6, 7), (2, 4, 7)]
    assert image.segments(1) == [(0, 2, 7), (1, 6, 7), (2, 4, 7)]


def test_unique_blocks_are_numbered_by_place_and_not_by_id() -> None:
    pool = BlockPool(16, 2)
    low = pool.allocate(4)
    table = BlockTable.open(pool)
    table.extend(4)
    pool.release(low)
    table.extend(4)
    table.advance(np.zeros(2, np.int32))
    image = table.image()
    assert image.unique_old.tolist() == table.trunk.tolist() == [4, 5, 0, 1]


def test_rows_that_are_equal_are_computed_once() -> None:
    table = BlockTable.open(BlockPool(8, 4))
    table.extend(6)
    table.advance(np.zeros(4, np.int32))
    assert table.image().segments() == [(0, 0, 6)]


def test_nothing_is_left_to_compute_when_all_is_cached() -> None:
    table = BlockTable.open(BlockPool(8, 4))
    table.extend(8)
    image = table.image()
    assert image.num_trunk == 2
    assert image.segments(2) == []


def test_no_rows_no_segments() -> None:
    table = BlockTable.open(BlockPool(8, 4))
    table.advance(np.empty(0, np.int32))
    image = table.image()
    assert (image.num_unique, image.segments()) == (0, [])
    assert BlockTable.restore(table.pool, image).rows == 0


def structure(table: BlockTable) -> list[list[int]]:
    """Each row's blocks, renamed in the order in which they appear."""
    names: dict[int, int] = {}
    rows: list[I32] = [table.row_blocks(row) for row in range(table.rows)]
    return [[names.setdefault(int(b), len(names)) for b in row] for row in rows]


def test_restored_the_rows_share_as_before_on_other_blocks() -> None:
    pool = BlockPool(24, 2)
    table = tree(pool)
    blocker = pool.allocate(3)
    image, before = table.image(), structure(table)
    table.release()
    pool.retain(blocker)
    restored = BlockTable.restore(pool, image)
    assert structure(restored) == before
    assert restored.length == image.length
    assert restored.image().tails.tolist() == image.tails.tolist()
    assert pool.num_free == 24 - 3 - image.num_unique
    restored.release()
    pool.release(np.tile(blocker, 2))
    pool.check([])


def test_restored_onto_cached_blocks_it_allocates_the_rest() -> None:
    pool = BlockPool(16, 2)
    cache = PrefixCache(pool, b"model")
    table = tree(pool)
    cache.insert(np.arange(4), table.row_blocks(0), computed_full=2)
    trunk, image = table.trunk.tolist(), table.image()
    table.release()
    restored = BlockTable.restore(pool, image, cache.match(np.arange(4)))
    assert restored.trunk.tolist() == trunk
    assert cache.num_evictable == 0
    pool.check([restored, cache])


def test_a_restore_that_does_not_fit_changes_nothing() -> None:
    pool = BlockPool(7, 2)
    cache = PrefixCache(pool, b"model")
    table = tree(pool)
    cache.insert(np.arange(4), table.row_blocks(0), computed_full=2)
    image = table.image()
    table.release()
    pool.allocate(1)
    with pytest.raises(OutOfBlocksError):
        BlockTable.restore(pool, image, cache.match(np.arange(4)))
    assert (pool.num_evictable, pool.num_free) == (2, 4)


def test_more_cached_blocks_than_the_trunk_has_are_refused() -> None:
    pool = BlockPool(16, 2)
    image = tree(pool).image()
    with pytest.raises(ValueError, match="cached: 3 blocks, the trunk has 2"):
        BlockTable.restore(pool, image, pool.allocate(3))
