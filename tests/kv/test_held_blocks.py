"""Handles of blocks at rest: shared, moved once for all that share them, lost when nobody knows better."""

from __future__ import annotations

import numpy as np

from forkdecode.kv import BlockPool, HostPool
from forkdecode.kv.held_blocks import HeldBlocks
from forkdecode.step import I32


def rows(num_blocks: int = 8) -> tuple[BlockPool, HostPool, HeldBlocks, I32, I32, I32]:
    """Two rows of three and two blocks that share the first; nobody else holds them."""
    pool, host = BlockPool(num_blocks, 4), HostPool(4)
    held = HeldBlocks(pool, host)
    blocks = pool.allocate(4)
    first, second = held.hold(blocks[:3]), held.hold(blocks[[0, 3]])
    pool.release(blocks)
    pool.check([held])
    assert first[0] == second[0]
    return pool, host, held, first, second, blocks


def test_a_block_goes_when_the_last_row_that_wants_it_does() -> None:
    pool, host, held, first, second, blocks = rows()
    held.settle(first)
    assert held.idle(first).tolist() == first[1:].tolist()
    moves = held.to_host(held.idle(first))
    assert moves.source.tolist() == blocks[1:3].tolist()
    held.settle(second)
    held.lose(held.idle(second))
    assert pool.num_free == 8
    assert host.num_free == 2
    pool.check([held])


def test_a_block_that_others_hold_does_not_go() -> None:
    pool, _, held, first, _, blocks = rows()
    pool.retain(blocks[1:2])
    held.settle(first)
    assert held.idle(first).tolist() == first[2:].tolist()


def test_what_one_row_brings_back_is_there_for_the_other() -> None:
    pool, host, held, first, second, _ = rows()
    held.settle(first)
    held.settle(second)
    held.to_host(first)
    host.moved()
    held.moved()
    [new] = pool.allocate(1)
    held.bind(first[:1], np.array([new], np.int32))
    pool.release(np.array([new], np.int32))
    assert held.block[second[0]] == new
    assert held.slot[second[0]] == -1
    assert host.num_free == 2
    held.leave(first, live=False)
    held.leave(second, live=False)
    assert (pool.num_free, host.num_free) == (8, 4)
    assert not held.rows.any()


def test_what_a_failed_step_was_to_move_is_lost() -> None:
    pool, host, held, first, second, _ = rows()
    held.settle(first)
    held.to_host(held.idle(first))
    host.moved()
    held.failed()
    assert (held.block[first] >= 0).tolist() == [True, False, False]
    assert (held.slot[first] >= 0).tolist() == [False, False, False]
    assert host.num_free == 4
    held.leave(first, live=False)
    held.leave(second, live=True)
    assert pool.num_free == 8


def test_more_handles_than_at_first() -> None:
    pool, host = BlockPool(1000, 4), HostPool(0)
    held = HeldBlocks(pool, host)
    blocks = pool.allocate(1000)
    handles = held.hold(blocks)
    assert len(set(handles.tolist())) == 1000
    pool.release(blocks)
    pool.check([held])
    held.leave(handles, live=True)
    assert pool.num_free == 1000


def test_slots_that_a_step_moves_are_nobody_elses_before_it_ran() -> None:
    host = HostPool(4)
    moving = host.allocate(3)
    host.moving(moving)
    host.free(moving)
    assert host.num_free == 1
    host.moved()
    assert host.num_free == 4
    again = host.allocate(2)
    host.moving(again)
    host.staying(again)
    host.free(again)
    assert host.num_free == 4
