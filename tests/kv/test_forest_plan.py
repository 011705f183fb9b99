"""The node list against the tables it came from: every query reads its own tokens, each once."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.kv.bytes_moved import BytesMoved, bytes_moved, plan_bytes
from forkdecode.kv.forest_items import ItemShape
from forkdecode.kv.forest_plan import ForestPlan, ForestPlanner
from forkdecode.step import DecodeRows, QuerySegment
from forkdecode_kernels.node_list import check_nodes

SHAPE = ItemShape(4, (4, 16), 4, 2, 8)
NO_FOLDING = replace(SHAPE, group=0)


class Names:
    """Hands out block ids in random order."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._ids = iter(rng.permutation(20_000).astype(np.int32))

    def take(self, n: int) -> np.ndarray:
        return np.array([next(self._ids) for _ in range(n)], np.int32)


def grown_tails(names: Names, rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Rows after `columns` steps of one block each, forked and pruned at random in between."""
    tails = np.empty((rows, 0), np.int32)
    for _ in range(columns):
        parents = rng.integers(0, rows, rows)
        tails = tails[parents]
        # The rows that stay beside each other may share the fresh block: they fork later.
        fresh = names.take(rows)
        together = rng.integers(0, 2, rows).astype(bool) & (np.roll(parents, 1) == parents)
        together[0] = False
        for r in np.flatnonzero(together):
            fresh[r] = fresh[r - 1]
        tails = np.column_stack([tails, fresh])
    return tails


def random_step(
    seed: int, sizes: list[tuple[int, int, int]], shared: int, chunks: list[tuple[int, int]], block_size: int
) -> tuple[list[QuerySegment], list[DecodeRows], int]:
    """Groups of (rows, own trunk, tail columns) behind a prefix of `shared` blocks, and segments of
    (position, tokens) behind it as far as it goes."""
    rng = np.random.default_rng(seed)
    names = Names(rng)
    prefix = names.take(shared)
    token, segments, decodes = 0, [], []
    for position, count in chunks:
        needed = -(-(position + count) // block_size)
        start = min(shared, position // block_size)
        blocks = np.concatenate([prefix[:start], names.take(needed - start)])
        segments.append(QuerySegment(token, count, position, blocks))
        token += count
    for rows, trunk, columns in sizes:
        cut = int(rng.integers(0, shared + 1))
        own = np.concatenate([prefix[:cut], names.take(trunk)])
        tails = grown_tails(names, rng, rows, columns)
        context = (len(own) + columns) * block_size - int(rng.integers(0, block_size))
        decodes.append(DecodeRows(token, own, tails, context))
        token += rows
    return segments, decodes, token + 3


def tables(segments: list[QuerySegment], decodes: list[DecodeRows]) -> dict[int, tuple[np.ndarray, int, int]]:
    """Query token -> its blocks, its position, and how many tokens its row has."""
    found = {}
    for s in segments:
        for i in range(s.token_count):
            found[s.token_start + i] = (s.blocks, s.position + i, s.position + s.token_count)
    for d in decodes:
        for r, tail in enumerate(d.tails):
            blocks = np.concatenate([d.trunk, tail])
            found[d.token_start + r] = (blocks, d.context_len - 1, d.context_len)
    return found


def check_plan(
    plan: ForestPlan,
    segments: list[QuerySegment],
    decodes: list[DecodeRows],
    num_tokens: int,
    block_size: int,
    tiles: tuple[int, int],
    window: int | None = None,
) -> None:
    """Follows every item by hand."""
    check_nodes(plan, 20_000, num_tokens, block_size)
    known = tables(segments, decodes)
    reads: dict[int, list[tuple[int, int, int]]] = {q: [] for q in known}
    part_of: dict[int, int] = {}
    for table, most in ((plan.small_items, tiles[0]), (plan.large_items, tiles[1])):
        for first, count, block, length, position, part, *_ in table.tolist():
            assert 0 < count <= most
            assert length > 0
            for i, q in enumerate(plan.queries[first : first + count].tolist()):
                reads[q].append((position, position + length, part + i if part >= 0 else -1))
                own, at, _ = known[q]
                listed = plan.blocks[block : block - -length // block_size]
                np.testing.assert_array_equal(
                    listed, own[position // block_size : position // block_size + len(listed)]
                )
                assert plan.positions[q] == at
                if part >= 0:
                    assert part_of.setdefault(part + i, q) == q
    merged = {
        int(q): plan.merge_parts[plan.merge_offsets[i] : plan.merge_offsets[i + 1]].tolist()
        for i, q in enumerate(plan.merged)
    }
    assert sorted(part_of) == list(range(plan.num_parts))
    assert sorted(plan.merge_parts.tolist()) == list(range(plan.num_parts))
    for q, (_, at, length) in known.items():
        ranges = sorted(reads[q])
        begin = 0 if window is None else max(0, at - window + 1)
        # A node that others still see may lie before the window, with a gap behind it.
        seen = [r for r in ranges if r[1] > begin]
        assert seen[0][0] <= begin
        assert all(a[1] == b[0] for a, b in pairwise(seen))
        assert at + 1 <= ranges[-1][1] <= length
        parts = [part for _, _, part in ranges]
        assert merged.get(q, [-1]) == parts
    assert {q for q, parts in merged.items() if not parts} == set(range(num_tokens)) - set(known)


STEPS = st.tuples(
    st.integers(0, 2**31),
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3), st.integers(1, 5)), max_size=4),
    st.integers(0, 6),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), max_size=2),
).filter(lambda step: step[1] or step[3])


@settings(max_examples=120)
@given(
    STEPS,
    st.sampled_from([1, 2, 4, 16]),
    st.sampled_from([SHAPE, NO_FOLDING]),
    st.none() | st.integers(1, 40),
    st.booleans(),
)
def test_every_query_reads_its_tokens_once(
    step: tuple[int, list[tuple[int, int, int]], int, list[tuple[int, int]]],
    block_size: int,
    shape: ItemShape,
    window: int | None,
    invariant: bool,
) -> None:
    segments, decodes, tokens = random_step(*step, block_size)
    shape = replace(shape, block_size=block_size)
    plan = ForestPlanner(shape, window=window, invariant=invariant).plan(segments, decodes, tokens)
    check_plan(plan, segments, decodes, tokens, block_size, shape.tile_queries, window)
    assert plan.causal == any(s.token_count > 1 for s in segments)


@settings(max_examples=60)
@given(STEPS, st.sampled_from([1, 4]))
def test_each_block_is_in_one_node(
    step: tuple[int, list[tuple[int, int, int]], int, list[tuple[int, int]]], block_size: int
) -> None:
    """Without folding, what decode rows read is each distinct block once."""
    seed, sizes, shared, _ = step
    _, decodes, tokens = random_step(seed, sizes or [(2, 1, 1)], shared, [], block_size)
    plan = ForestPlanner(replace(NO_FOLDING, block_size=block_size)).plan([], decodes, tokens)
    used: dict[int, int] = {}
    for d in decodes:
        for tail in d.tails:
            for column, block in enumerate([*d.trunk.tolist(), *tail.tolist()]):
                filled = min(block_size, d.context_len - column * block_size)
                used[block] = max(used.get(block, 0), filled)
    assert plan.node_tokens == sum(used.values())
    assert plan.row_tokens == sum(len(d.tails) * d.context_len for d in decodes)


@pytest.mark.parametrize("invariant", [False, True])
def test_requests_behind_the_same_cached_blocks_share_their_node(invariant: bool) -> None:
    """Two beams of 3 and the last chunk of a third request's prompt, behind 64 cached blocks of 4 tokens."""
    cached, own = np.arange(64, dtype=np.int32), np.arange(100, 170, dtype=np.int32).reshape(7, 10)
    decodes = [
        DecodeRows(2 + 3 * i, np.concatenate([cached, own[i, :3]]), own[1 + 3 * i : 4 + 3 * i, 3:5], 275)
        for i in range(2)
    ]
    chunk = QuerySegment(0, 2, 256, np.concatenate([cached, own[0, 9:]]))
    plan = ForestPlanner(SHAPE, invariant=invariant).plan([chunk], decodes, 8)
    check_plan(plan, [chunk], decodes, 8, 4, SHAPE.tile_queries)
    shared = [item for item in plan.large_items.tolist() if item[4] == 0]
    assert [(count, tokens) for _, count, _, tokens, *_ in shared] == [(8, 256)]
    assert plan.node_tokens == 256 + 2 * 12 + 6 * 7


def test_short_nodes_are_folded_into_their_children() -> None:
    """Two rows share one block of 4 tokens: a node of two pays from 2 * 4 * 2 / 1 = 16 tokens."""
    tails = np.array([[7, 1], [7, 2], [8, 3]], np.int32)
    decodes = [DecodeRows(0, np.array([9], np.int32), tails, 12)]
    folded = ForestPlanner(SHAPE).plan([], decodes, 3)
    assert len(folded.small_items) == 4
    assert folded.node_tokens == 4 + 3 * 8
    assert len(ForestPlanner(NO_FOLDING).plan([], decodes, 3).small_items) == 5


def test_a_row_that_shares_nothing_is_one_item_without_parts() -> None:
    decodes = [DecodeRows(0, np.arange(5, dtype=np.int32), np.array([[9, 8]], np.int32), 26)]
    plan = ForestPlanner(SHAPE).plan([], decodes, 1)
    assert plan.small_items.tolist() == [[0, 1, 0, 26, 0, -1, 0, 0]]
    assert plan.num_parts == 0
    assert len(plan.merged) == 0


def test_a_step_of_padding_alone() -> None:
    check_plan(ForestPlanner(SHAPE).plan([], [], 3), [], [], 3, 4, SHAPE.tile_queries)


def test_long_nodes_are_split_until_the_processors_are_busy() -> None:
    decodes = [DecodeRows(0, np.arange(1000, dtype=np.int32), np.array([[2000]], np.int32), 4002)]
    plan = ForestPlanner(SHAPE).plan([], decodes, 1)  # 8 processors, 2 kv heads: 8 items of 512
    assert len(plan.small_items) == 8
    assert plan.num_parts == 8


def test_tables_may_be_parts_of_larger_ones() -> None:
    blocks = np.arange(60, dtype=np.int32).reshape(3, 20)
    for trunk, tails in ((blocks[0, :6:2], blocks[:2, 7:9]), (blocks[0, :2], blocks[:2, 9::-4])):
        decodes = [DecodeRows(0, trunk, tails, 4 * (len(trunk) + tails.shape[1]) - 1)]
        plan = ForestPlanner(SHAPE).plan([], decodes, 2)
        check_plan(plan, [], decodes, 2, 4, SHAPE.tile_queries)


def test_growth_inside_a_block_keeps_the_structure() -> None:
    _, decodes, tokens = random_step(3, [(6, 3, 4), (2, 1, 2)], 3, [], 4)
    decodes = [replace(d, context_len=(len(d.trunk) + d.tails.shape[1]) * 4 - 3) for d in decodes]
    planner = ForestPlanner(SHAPE)
    plan = planner.plan([], decodes, tokens)
    assert planner.plan([], decodes, tokens) is plan
    for _ in range(3):
        decodes = [replace(d, context_len=d.context_len + 1) for d in decodes]
        grown = planner.plan([], decodes, tokens)
        assert grown.merge_parts is plan.merge_parts
        check_plan(grown, [], decodes, tokens, 4, SHAPE.tile_queries)
        fresh = ForestPlanner(SHAPE).plan([], decodes, tokens)
        assert grown.node_tokens == fresh.node_tokens
        np.testing.assert_array_equal(grown.small_items, fresh.small_items)
        np.testing.assert_array_equal(grown.large_items, fresh.large_items)


@settings(max_examples=40)
@given(st.integers(0, 2**31), st.integers(2, 6), st.integers(64, 140))
def test_fixed_splits_do_not_depend_on_the_batch(seed: int, rows: int, shared: int) -> None:
    """A group's ranges are the same alone and beside groups that share its first blocks."""
    _, decodes, tokens = random_step(seed, [(rows, 5, 3), (3, 2, 2), (1, 9, 1)], shared, [], 4)

    def ranges(plan: ForestPlan, query: int) -> list[tuple[int, int]]:
        return sorted(
            (p, p + n)
            for first, count, _, n, p, *_ in plan.large_items.tolist()
            if query in plan.queries[first : first + count]
        )

    together = ForestPlanner(SHAPE, invariant=True).plan([], decodes, tokens)
    assert len(together.small_items) == 0
    for d in decodes:
        alone = ForestPlanner(SHAPE, invariant=True).plan([], [d], tokens)
        for q in range(d.token_start, d.token_start + d.rows):
            assert ranges(alone, q) == ranges(together, q)


def test_bytes_moved_by_hand() -> None:
    """Four beams on two blocks of 16 tokens, one block each with 5 tokens; H 8, K 2, D 64, bf16."""
    tails = np.arange(10, 14, dtype=np.int32)[:, None]
    decodes = [DecodeRows(0, np.array([1, 2], np.int32), tails, 37)]
    plan = ForestPlanner(replace(SHAPE, block_size=16)).plan([], decodes, 4)
    moved = bytes_moved(plan, num_heads=8, num_kv_heads=2, head_dim=64, element_bytes=2)
    token = 2 * 2 * 64 * 2
    assert moved.paged == 4 * 37 * token
    assert moved.naive == 3 * moved.paged
    assert moved.forest == (32 + 4 * 5) * token + 8 * 8 * 65 * 8  # 8 parts, 8 heads, 65 floats out and in
    alone = ForestPlanner(replace(SHAPE, block_size=16)).plan(
        [], [DecodeRows(0, np.array([1, 2], np.int32), tails[:1], 37)], 1
    )
    lone = bytes_moved(alone, num_heads=8, num_kv_heads=2, head_dim=64, element_bytes=2)
    assert lone == BytesMoved(3 * 37 * token, 37 * token, 37 * token)
    assert lone.gain == 1
    assert (moved + lone).paged == moved.paged + lone.paged


def test_segments_do_not_count_as_decode_reads() -> None:
    segment = QuerySegment(0, 5, 8, np.arange(50, 54, dtype=np.int32))
    decode = DecodeRows(5, np.array([1], np.int32), np.array([[2], [3]], np.int32), 6)
    plan = ForestPlanner(SHAPE).plan([segment], [decode], 7)
    assert plan.row_tokens == 12
    assert plan.node_tokens == 4 + 2 + 2
    assert plan.segment_tokens == 13


def test_what_a_plan_moves_has_segments_in_it() -> None:
    """A chunk of 5 tokens after 8, a row of 6 behind its first block; H 4, K 2, D 8, float32."""
    segment = QuerySegment(0, 5, 8, np.arange(50, 54, dtype=np.int32))
    decode = DecodeRows(5, np.array([50], np.int32), np.array([[2]], np.int32), 6)
    shape = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "element_bytes": 4}
    plan = ForestPlanner(replace(SHAPE, group=0)).plan([segment], [decode], 6)
    assert (plan.node_tokens, plan.segment_tokens) == (4 + 2, 9)
    # Each of 6 queries reads in two pieces.
    assert plan_bytes(plan, **shape) == 15 * 2 * 2 * 8 * 4 + 12 * 4 * 9 * 4 * 2
    alone = ForestPlanner(SHAPE).plan([segment], [], 5)
    assert plan_bytes(alone, **shape) == 13 * 2 * 2 * 8 * 4


def least_time(decodes: list[DecodeRows], rows: int) -> float:
    """Seconds of the thread that a fresh plan takes."""
    shape = ItemShape(16, (4, 16), 4, 8, 132)
    times = []
    for _ in range(9):
        begin = time.thread_time()
        ForestPlanner(shape).plan([], decodes, rows)
        times.append(time.thread_time() - begin)
    return min(times)


def forked_tails(rng: np.random.Generator, rows: int, columns: int, first: int) -> np.ndarray:
    """Rows that have forked at each of their columns, blocks from `first` on."""
    tails = np.empty((rows, 0), np.int32)
    for column in range(columns):
        fresh = rng.permutation(rows).astype(np.int32) + first + column * rows
        tails = np.column_stack([tails[rng.integers(0, rows, rows)], fresh])
    return tails.astype(np.int32)


@pytest.mark.parametrize(("trunk", "columns"), [(156, 4), (100, 60)])
def test_planning_is_fast(trunk: int, columns: int) -> None:
    """512 rows of 160 blocks. The bound is generous, for busy machines: it catches a loop over rows."""
    tails = forked_tails(np.random.default_rng(0), 512, columns, 1000)
    decodes = [DecodeRows(0, np.arange(trunk, dtype=np.int32), tails, 160 * 16)]
    assert least_time(decodes, 512) < 5e-3


def test_many_small_groups_are_planned_together() -> None:
    """256 beams of 8. The bound catches what is done group by group, which takes 30 ms and more."""
    rng, decodes = np.random.default_rng(0), []
    for group in range(256):
        trunk = 100_000 + group * 20 + np.arange(20, dtype=np.int32)
        decodes.append(DecodeRows(8 * group, trunk, forked_tails(rng, 8, 3, 24 * group), 23 * 16))
    assert least_time(decodes, 2048) < 15e-3


def test_groups_that_share_too_little_to_read_it_once_read_their_own_trunks() -> None:
    """A row, and two rows of another group, behind one shared block: folded, and the two go on as a node."""
    first = np.array([7], np.int32)
    decodes = [
        DecodeRows(0, first, np.array([[1]], np.int32), 2),
        DecodeRows(1, first, np.array([[2], [3]], np.int32), 2),
    ]
    shape = replace(SHAPE, block_size=1)
    plan = ForestPlanner(shape).plan([], decodes, 3)
    check_plan(plan, [], decodes, 3, 1, SHAPE.tile_queries)
    assert plan.node_tokens == 2 + 1 + 1 + 1
    assert ForestPlanner(replace(shape, group=0)).plan([], decodes, 3).node_tokens == 1 + 1 + 1 + 1
