"""Shared paths: their tokens, and the blocks that held ones refer to, against sets of blocks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from forkdecode.tree.path import BlockCount, Path

SIZE = 4
MOVES = st.lists(
    st.tuples(st.sampled_from(("grow", "cut", "hold", "release")), st.integers(0, 30), st.integers(1, 9)),
    max_size=40,
)


class _Reference:
    """Paths as lists of cells, each written once, in the order of the path; a block is SIZE cells."""

    def __init__(self) -> None:
        self._next = 0

    def cells(self, before: tuple[int, ...], count: int) -> tuple[int, ...]:
        self._next += count
        return before + tuple(range(self._next - count, self._next))

    @staticmethod
    def blocks(held: list[tuple[int, ...]]) -> int:
        """A full block is named by its last cell; a partial one at an end by that end."""
        full = {path[i] for path in held for i in range(SIZE - 1, len(path), SIZE)}
        partial = {path[-1] for path in held if len(path) % SIZE}
        return len(full) + len(partial)


@given(moves=MOVES)
def test_blocks_are_counted_once(moves: list[tuple[str, int, int]]) -> None:
    reference, count = _Reference(), BlockCount(SIZE)
    cells = [reference.cells((), 6)]
    paths = [Path(None, np.array(cells[0], np.int64))]
    held: list[int] = []
    for move, pick, size in moves:
        i = pick % len(paths)
        if move == "grow":
            cells.append(reference.cells(cells[i], size))
            paths.append(Path(paths[i], np.array(cells[-1][-size:], np.int64)))
        elif move == "cut":
            length = max(1, len(cells[i]) - size)
            cells.append(cells[i][:length])
            paths.append(paths[i].up_to(length))
        elif move == "hold":
            together = [i, (pick + size) % len(paths), i]
            more, before = count.cost(paths[j] for j in together), count.total
            for j in together:
                count.hold(paths[j])
                held.append(j)
            assert count.total == before + more
        elif held:
            count.release(paths[held.pop(pick % len(held))])
        assert count.total == reference.blocks([cells[j] for j in held])
    for path, whole in zip(paths, cells, strict=True):
        assert path.length == len(whole)
        for start in (0, len(whole) // 2, len(whole)):
            assert tuple(path.token_ids(start).tolist()) == whole[start:]
    for i in held:
        count.release(paths[i])
    assert count.total == 0


def test_logprobs_follow_their_tokens_through_a_split() -> None:
    given_tokens = Path(None, np.array([1, 2, 3], np.int64))
    grown = Path(given_tokens, np.array([4, 5, 6], np.int64), np.array([-1, -2, -3], np.float32))
    short = grown.up_to(5)
    assert short.token_logprobs() == [0, 0, 0, -1, -2]
    assert grown.token_logprobs(4) == [-2, -3]
    assert short.token_ids(3).tolist() == [4, 5]
    assert grown.up_to(3) is given_tokens
    assert grown.up_to(6) is grown
