from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.kv.idle_queue import IdleQueue

BLOCKS = st.lists(st.integers(0, 29), unique=True, max_size=30)
MOVES = st.lists(st.tuples(st.sampled_from(["append", "discard", "pop"]), BLOCKS), max_size=60)


@settings(deadline=None, derandomize=True)
@given(MOVES)
def test_queue_is_a_list_in_order(moves: list[tuple[str, list[int]]]) -> None:
    queue, expected = IdleQueue(30), []
    for move, blocks in moves:
        if move == "append":
            queue.append(np.array(blocks, np.int32))
            expected = [b for b in expected if b not in blocks] + blocks
        elif move == "discard":
            queue.discard(np.array(blocks, np.int32))
            expected = [b for b in expected if b not in blocks]
        else:
            count = min(len(blocks), len(expected))
            assert queue.pop(count).tolist() == expected[:count]
            expected = expected[count:]
        assert queue.ids().tolist() == expected
        assert len(queue) == len(expected)
        assert queue.contains(np.arange(30, dtype=np.int32)).nonzero()[0].tolist() == sorted(expected)


def test_memory_follows_what_is_live() -> None:
    queue, blocks = IdleQueue(100), np.arange(100, dtype=np.int32)
    for _ in range(1000):
        queue.append(blocks)
    assert len(queue._blocks) <= 4 * len(blocks)
    assert queue.pop(100).tolist() == blocks.tolist()


def test_pop_passes_over_long_stretches_of_stale_entries() -> None:
    queue = IdleQueue(1000)
    queue.append(np.arange(1000, dtype=np.int32))
    queue.discard(np.arange(995, dtype=np.int32))
    assert queue.pop(3).tolist() == [995, 996, 997]
    assert queue.ids().tolist() == [998, 999]
