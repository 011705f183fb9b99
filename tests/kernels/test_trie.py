"""One step down a trie: the fast way against the obvious one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from forkdecode_kernels.reference import trie as reference
from forkdecode_kernels.trie import step_down, warm_up


def _random_trie(
    rng: np.random.Generator, nodes: int, wide: bool
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Each node but the root is the child of one before it, in order, as breadth first numbers are."""
    parents = np.sort(rng.integers(0, np.arange(1, nodes))) if nodes > 1 else np.empty(0, np.int64)
    parents = np.minimum(parents, np.arange(nodes - 1))
    counts = np.bincount(parents, minlength=nodes)
    offsets = 1 + np.concatenate([[0], np.cumsum(counts)])
    tokens = np.full(nodes, -1, np.int32)
    for node in range(nodes):
        start, stop = offsets[node], offsets[node + 1]
        high = 2**31 - 1 if wide else stop - start + 3
        tokens[start:stop] = (
            np.sort(rng.choice(high, stop - start, replace=False))
            if not wide
            else np.sort(rng.integers(0, high, 4 * (stop - start) + 4))[: stop - start]
        )
    return tokens, offsets


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**31),
    st.integers(1, 40),
    st.integers(1, 6),
    st.integers(0, 12),
    st.booleans(),
    st.booleans(),
)
def test_equals_the_search_row_by_row(
    seed: int, nodes: int, rows: int, picks: int, small: bool, frozen: bool
) -> None:
    rng = np.random.default_rng(seed)
    tokens, offsets = _random_trie(rng, nodes, wide=not small)
    if small:
        offsets = offsets.astype(np.int32)
    if frozen:
        tokens.flags.writeable = offsets.flags.writeable = False
    at = rng.integers(-1, nodes, rows)
    parents = rng.integers(0, rows, picks).astype(np.int32)
    near = tokens[rng.integers(0, nodes, picks)].astype(np.int64) + rng.integers(-1, 2, picks)
    chosen = np.where(rng.random(picks) < 0.5, near, rng.integers(0, 8, picks))
    np.testing.assert_array_equal(
        step_down(tokens, offsets, at, parents, chosen),
        reference.step_down(tokens, offsets, at, parents, chosen),
    )


def test_what_is_out_of_bounds_is_refused() -> None:
    warm_up()
    tokens, offsets = np.array([-1, 3], np.int32), np.array([1, 2, 2], np.int32)
    node, row, token = np.zeros(1, np.int64), np.zeros(1, np.int32), np.full(1, 3)
    assert step_down(tokens, offsets, node, row, token).tolist() == [1]
    for parents in (row + 1, row - 1):
        with pytest.raises(ValueError, match="parents"):
            step_down(tokens, offsets, node, parents, token)
    with pytest.raises(ValueError, match="nodes"):
        step_down(tokens, offsets, node + 2, row, token)
    with pytest.raises(ValueError, match="offsets"):
        step_down(tokens, offsets[:2], node, row, token)
    with pytest.raises(ValueError, match="length"):
        step_down(tokens, offsets, node, row, np.zeros(2, np.int64))
