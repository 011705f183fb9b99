from __future__ import annotations

import numpy as np
import pytest

from forkdecode.kv import BlockPool, BlockTable, OutOfBlocksError, sharing
from forkdecode.kv.forest import unused_slots
from forkdecode.step import I32


def ids(*values: int) -> I32:
    return np.array(values, np.int32)


def forked(pool: BlockPool, tokens: int, rows: int) -> BlockTable:
    table = BlockTable.open(pool)
    table.extend(tokens)
    table.advance(np.zeros(rows, np.int32))
    return table


def test_a_prompt_takes_consecutive_slots_and_its_full_blocks_become_the_trunk() -> None:
    pool = BlockPool(8, 4)
    table = BlockTable.open(pool)
    assert table.blocks_needed(10) == 3
    assert table.extend(10).slots.tolist() == [list(range(10))]
    table.advance(ids(0))
    assert (table.trunk.tolist(), table.tails.tolist()) == ([0, 1], [[2]])
    pool.check([table])


def test_a_fork_takes_references_and_no_block() -> None:
    pool = BlockPool(8, 4)
    table = forked(pool, 10, 5)
    assert (pool.num_free, table.num_unique, table.num_unshared) == (5, 3, 15)
    assert pool.ref_count[:3].tolist() == [1, 1, 5]
    pool.check([table])


def test_the_last_writer_keeps_the_shared_block() -> None:
    pool = BlockPool(8, 4)
    table = forked(pool, 10, 3)
    assert table.blocks_needed(1) == 2
    extension = table.extend(1)
    assert extension.copies.source.tolist() == [2, 2]
    assert sorted(extension.slots.ravel().tolist()) == [2 * 4 + 2, 3 * 4 + 2, 4 * 4 + 2]
    assert table.blocks_needed(1) == 0
    pool.check([table])


def test_a_held_row_makes_every_writer_copy() -> None:
    pool = BlockPool(8, 4)
    table = forked(pool, 10, 3)
    held = table.hold(1)
    assert table.blocks_needed(1) == 3
    assert len(table.extend(1).copies) == 3
    assert 2 not in table.tails
    pool.check([table, held])


def test_groups_that_continue_one_held_row_write_apart() -> None:
    pool = BlockPool(8, 4)
    origin = forked(pool, 6, 1)
    held = origin.hold(0)
    origin.release()
    first, second = BlockTable.from_held(pool, held), BlockTable.from_held(pool, held)
    held.release()
    assert len(first.extend(1).copies) == 1
    # The other has left: the second writes in place, after the copies of the step.
    assert len(second.extend(1).copies) == 0
    pool.check([first, second])


def test_the_source_of_a_copy_is_not_reused_within_the_step() -> None:
    pool = BlockPool(3, 4)
    origin = forked(pool, 2, 1)
    held = origin.hold(0)
    source = int(held.blocks[0])
    copies = origin.extend(1).copies
    held.release()
    other = BlockTable.open(pool)
    other.extend(4)
    assert source in copies.source
    assert source not in other.tails
    pool.begin_step()
    assert pool.num_free == 1
    pool.check([origin, other])


def test_extending_by_many_copies_and_allocates_in_one_go() -> None:
    pool = BlockPool(16, 4)
    table = forked(pool, 6, 3)
    assert table.blocks_needed(7) == 2 + 3 * 2
    extension = table.extend(7)
    assert extension.slots.shape == (3, 7)
    assert len(np.unique(extension.slots)) == 21
    assert (extension.slots % 4)[0].tolist() == [2, 3, 0, 1, 2, 3, 0]
    pool.check([table])


def test_out_of_blocks_changes_nothing() -> None:
    pool = BlockPool(4, 4)
    table = forked(pool, 6, 3)
    with pytest.raises(OutOfBlocksError, match="8 KV blocks are needed and 2 are available"):
        table.extend(7)
    assert (table.length, table.tails.tolist(), pool.num_free) == (6, [[1]] * 3, 2)
    pool.check([table])
    table.extend(1)


def test_block_size_one_never_copies() -> None:
    pool = BlockPool(16, 1)
    table = forked(pool, 3, 4)
    assert (table.trunk.tolist(), table.tails.shape) == ([0, 1, 2], (4, 0))
    assert table.blocks_needed(2) == 8
    assert len(table.extend(2).copies) == 0
    table.advance(ids(2, 2))
    assert (len(table.trunk), table.tails.shape) == (5, (2, 0))
    pool.check([table])


def test_no_token_no_change() -> None:
    pool = BlockPool(8, 4)
    table = forked(pool, 6, 3)
    assert table.blocks_needed(0) == 0
    extension = table.extend(0)
    assert (extension.slots.shape, len(extension.copies), table.length) == ((3, 0), 0, 6)


def test_rows_that_come_to_share_full_blocks_share_them_in_the_trunk() -> None:
    pool = BlockPool(32, 2)
    table = forked(pool, 2, 3)
    for _ in range(5):
        table.extend(1)
    assert len(table.trunk) == 1
    table.advance(ids(1, 1, 1))
    assert (len(table.trunk), table.tails.shape) == (3, (3, 1))
    assert table.num_unique == 4
    pool.check([table])


def test_a_shared_partial_block_is_not_promoted() -> None:
    pool = BlockPool(8, 4)
    table = forked(pool, 6, 3)
    table.extend(1)
    table.advance(ids(2, 2, 2))
    assert (table.trunk.tolist(), table.tails.shape) == ([0], (3, 1))


def test_pruning_all_rows_drops_everything() -> None:
    pool = BlockPool(8, 4)
    table = forked(pool, 10, 3)
    table.advance(ids())
    assert (table.rows, table.length, table.num_unique, pool.num_free) == (0, 0, 0, 8)
    assert table.blocks_needed(3) == 0
    assert table.extend(3).slots.shape == (0, 3)
    table.advance(ids())
    table.release()
    pool.check([table])


@pytest.mark.parametrize("parents", [[0, 3], [-1, 0], [3]])
def test_a_parent_out_of_range_changes_nothing(parents: list[int]) -> None:
    pool = BlockPool(8, 4)
    table = forked(pool, 10, 3)
    with pytest.raises(ValueError, match=r"parents: .*allowed: 0 to 2"):
        table.advance(np.array(parents, np.int32))
    assert table.rows == 3
    pool.check([table])


def test_a_single_row_refuses_a_parent_out_of_range() -> None:
    table = BlockTable.open(BlockPool(4, 4))
    with pytest.raises(ValueError, match="parents"):
        table.advance(ids(1))


def test_arrays_handed_out_do_not_change() -> None:
    pool = BlockPool(64, 2)
    table = forked(pool, 6, 3)
    table.extend(1)
    trunk, tails = table.trunk, table.tails
    kept = trunk.tolist(), tails.tolist()
    for parents in ([0, 0, 1], [2, 2, 2], [0, 1, 2], [1]):
        table.advance(np.array(parents, np.int32))
        table.extend(1)
    table.truncate(3)
    table.extend(9)
    table.advance(ids(0))
    assert (trunk.tolist(), tails.tolist()) == kept


def test_a_copy_does_not_change_the_tails_handed_out_before_it() -> None:
    table = forked(BlockPool(8, 4), 6, 3)
    tails = table.tails
    assert len(table.extend(1).copies) == 2
    assert tails.tolist() == [[1]] * 3


def test_a_cut_in_the_trunk_makes_its_last_block_writable() -> None:
    pool = BlockPool(16, 4)
    table = forked(pool, 10, 3)
    table.truncate(6)
    assert (table.trunk.tolist(), table.tails.tolist(), pool.num_free) == ([0], [[1]] * 3, 14)
    assert len(table.extend(1).copies) == 2
    pool.check([table])


def test_a_cut_at_a_block_leaves_no_tail() -> None:
    pool = BlockPool(16, 4)
    table = forked(pool, 10, 3)
    table.truncate(4)
    assert (table.trunk.tolist(), table.tails.shape, pool.num_free) == ([0], (3, 0), 15)
    table.truncate(0)
    assert (table.rows, pool.num_free) == (3, 16)


@pytest.mark.parametrize("length", [-1, 11])
def test_a_cut_out_of_range_is_refused(length: int) -> None:
    table = forked(BlockPool(16, 4), 10, 3)
    with pytest.raises(ValueError, match=r"num_tokens: .*allowed: 0 to 10"):
        table.truncate(length)


def test_the_cost_of_a_step_does_not_touch_the_trunk() -> None:
    pool = BlockPool(64, 4)
    table = forked(pool, 80, 3)
    buffer = table._trunk
    before = pool.ref_count[table.trunk].copy()
    table.extend(1)
    table.advance(ids(0, 0, 2))
    assert table._trunk is buffer
    assert (pool.ref_count[table.trunk] == before).all()


def test_sharing_counts_what_strangers_share_once() -> None:
    pool = BlockPool(16, 4)
    first = forked(pool, 10, 3)
    second = BlockTable.open(pool, first.trunk)
    second.extend(1)
    stats = sharing([first, second])
    assert (stats.unshared, stats.unique, stats.unused_slots) == (9 + 3, 4, 2 + 3)
    assert stats.saved == pytest.approx(8 / 12)
    assert sharing([]).saved == 0.0
    for table in (first, second):
        assert unused_slots(table) == sharing([table]).unused_slots
