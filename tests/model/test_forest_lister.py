"""The compiled node list is the one that numpy makes, array for array."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.kv.forest_items import Forest, ItemShape
from forkdecode.kv.forest_plan import ForestPlan, ForestPlanner
from forkdecode.model.forest_lister import compiled_lister
from forkdecode.step import DecodeRows, QuerySegment
from forkdecode_kernels.forest import ForestShape, list_forest
from tests.kv.test_forest_plan import SHAPE, STEPS, forked_tails, random_step


def same(ours: ForestPlan | Forest, expected: ForestPlan | Forest) -> None:
    for field in fields(expected):
        a, b = getattr(ours, field.name), getattr(expected, field.name)
        np.testing.assert_array_equal(a, b, err_msg=field.name)
        assert getattr(a, "dtype", type(a)) == getattr(b, "dtype", type(b)), field.name


def check(
    segments: list[QuerySegment],
    decodes: list[DecodeRows],
    num_tokens: int,
    shape: ItemShape,
    window: int | None = None,
    invariant: bool = False,
) -> None:
    """Whole plans: a fresh one, and where rows alone decode one whose contexts grow, as far as they may."""
    planners = [
        ForestPlanner(shape, window=window, invariant=invariant, lister=lister)
        for lister in (compiled_lister, None)
    ]
    same(*(planner.plan(segments, decodes, num_tokens) for planner in planners))
    full = [replace(d, context_len=(len(d.trunk) + d.tails.shape[1]) * shape.block_size) for d in decodes]
    same(*(planner.plan([], full, num_tokens) for planner in planners))


@settings(max_examples=150, deadline=None)
@given(
    STEPS,
    st.sampled_from([1, 2, 4, 16]),
    st.sampled_from([0, 1, 4, 8]),
    st.sampled_from([(4, 16), (1, 2)]),
    st.integers(1, 132),
    st.none() | st.integers(1, 40),
    st.booleans(),
)
def test_random_steps(
    step: tuple[int, list[tuple[int, int, int]], int, list[tuple[int, int]]],
    block_size: int,
    group: int,
    tiles: tuple[int, int],
    processors: int,
    window: int | None,
    invariant: bool,
) -> None:
    """Groups and prompts' chunks behind a common prefix, folded as much as the shapes make worth it."""
    shape = ItemShape(block_size, tiles, group, 2, processors)
    check(*random_step(*step, block_size), shape, window, invariant)


ROWS = st.integers(0, 5).flatmap(
    lambda columns: st.lists(
        st.lists(st.integers(0, 2), min_size=columns, max_size=columns), min_size=1, max_size=12
    ).map(lambda rows: np.array(rows, np.int32).reshape(len(rows), columns))
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 1), max_size=4), ROWS), min_size=1, max_size=4),
    st.sampled_from([0, 4, 8]),
    st.booleans(),
)
def test_any_tables(groups: list[tuple[list[int], np.ndarray]], group: int, invariant: bool) -> None:
    """Blocks in whatever order, equal rows, trunks that begin alike, are parts of others or are none."""
    decodes, token = [], 0
    for trunk, tails in groups:
        blocks = len(trunk) + tails.shape[1]
        if blocks:
            decodes.append(DecodeRows(token, np.array(trunk, np.int32), tails, blocks * 4 - 1))
            token += len(tails)
    check([], decodes, token + 1, replace(SHAPE, group=group), None, invariant)


@pytest.mark.parametrize(("trunk", "columns"), [(156, 4), (100, 60), (0, 160)])
@pytest.mark.parametrize("group", [4, 8])
def test_wide_beams(trunk: int, columns: int, group: int) -> None:
    """512 rows of 160 blocks, in random order."""
    tails = forked_tails(np.random.default_rng(0), 512, columns, 1000)
    decodes = [DecodeRows(0, np.arange(trunk, dtype=np.int32), tails, 160 * 16 - 3)]
    shape = ItemShape(16, (4, 16), group, 8, 132)
    check([], decodes, 512, shape)
    check([], decodes, 512, shape, window=1024, invariant=True)


@pytest.mark.parametrize("spread", [1, 4096])
def test_many_rows_that_part_at_one_block(spread: int) -> None:
    """60 rows: equal ones, ones that part at the last block, at the first, and in between with others. Spread
    ids meet in a hash table of few places."""
    rng = np.random.default_rng(1)
    tails = np.tile(rng.integers(0, 50, 9).astype(np.int32), (60, 1))
    tails[20:40, 8] = 100 + rng.permutation(20)
    tails[40:, 0] = 200 + rng.permutation(20)
    tails[10:50, 4] = 300 + rng.integers(0, 25, 40)
    tails = tails[rng.permutation(60)] * np.int32(spread)
    for group in (0, 4):
        check([], [DecodeRows(0, np.arange(3, dtype=np.int32), tails, 47)], 61, replace(SHAPE, group=group))


def test_many_groups_behind_cached_prefixes() -> None:
    """64 beams of 8: eight prompts of 20 blocks, the first 16 of which are the same eight by eight."""
    rng, decodes = np.random.default_rng(0), []
    for group in range(64):
        prefix = 16 * (group % 8) + np.arange(16)
        trunk = np.concatenate([prefix, 10_000 + 4 * group + np.arange(4)]).astype(np.int32)
        decodes.append(DecodeRows(8 * group, trunk, forked_tails(rng, 8, 3, 20_000 + 24 * group), 23 * 16))
    order = rng.permutation(64)
    for invariant in (False, True):
        check([], [decodes[i] for i in order], 512, ItemShape(16, (4, 16), 4, 8, 132), None, invariant)


def test_sizes_that_do_not_fit_together_are_refused() -> None:
    shape = ForestShape(4, (1, 2), 1, 1, 1)
    groups = np.array([[0], [2], [1], [5], [1], [1]], np.int64)
    with pytest.raises(ValueError, match="blocks: not as many"):
        list_forest(np.arange(4, dtype=np.int32), groups, 2, shape)
    with pytest.raises(ValueError, match=r"\[6, G\]"):
        list_forest(np.arange(3, dtype=np.int32), groups[:5], 2, shape)
    with pytest.raises(ValueError, match="beyond num_tokens"):
        list_forest(np.arange(3, dtype=np.int32), groups, 1, shape)
    with pytest.raises(ValueError, match="0 or more"):
        list_forest(np.arange(3, dtype=np.int32), np.where(groups == 5, -1, groups), 2, shape)
    with pytest.raises(ValueError, match="split_tokens: 6"):
        list_forest(np.arange(3, dtype=np.int32), groups, 2, replace(shape, split_tokens=6))
