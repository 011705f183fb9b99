"""Attention over a node list against each row alone in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode_kernels.node_list import NodeCapacity, NodeListBuffer, check_nodes, node_list
from forkdecode_kernels.reference.node_attention import node_attention as reference
from forkdecode_kernels.triton.node_attention import node_attention
from forkdecode_kernels.triton.tiles import tile_queries
from tests.kernels.triton.node_cases import Arrays, Row, dense_attention, grow_forest, plan_rows

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Shape:
    heads: int = 4
    kv_heads: int = 2
    dim: int = 64
    block_size: int = 16


def tensors(
    rows: list[Row], shape: Shape, dtype: torch.dtype, seed: int, padding: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """query [H, T, D], kv [2, K, B, S, D]; blocks of no row and slots behind each row's end hold NaN."""
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(len(row.queries) for row in rows) + padding
    num_blocks = max(max(row.blocks) for row in rows) + 1
    query = torch.randn(shape.heads, tokens, shape.dim, generator=generator).to(dtype)
    kv = torch.full((2, shape.kv_heads, num_blocks, shape.block_size, shape.dim), float("nan"))
    for row in rows:
        for i, block in enumerate(row.blocks):
            size = min(shape.block_size, row.length - i * shape.block_size)
            fresh = torch.randn(2, shape.kv_heads, size, shape.dim, generator=generator)
            kv[:, :, block, :size] = fresh
    return query, kv.to(dtype)


def check(
    rows: list[Row],
    shape: Shape,
    dtype: torch.dtype = torch.float32,
    *,
    split: int = 1 << 20,
    padding: int = 0,
    seed: int = 0,
    window: int | None = None,
    softcap: float | None = None,
    with_sinks: bool = False,
) -> torch.Tensor:
    """Rule of tolerance: at most twice the error of the same attention in plain torch at this precision."""
    query, kv = tensors(rows, shape, dtype, seed, padding)
    tokens = query.shape[1]
    tiles = tile_queries(shape.dim, query.element_size(), shape.heads // shape.kv_heads)
    arrays = plan_rows(rows, shape.block_size, tokens, tiles, split)
    nodes = node_list(arrays, CPU)
    sinks = torch.randn(shape.heads, generator=torch.Generator().manual_seed(seed)) if with_sinks else None
    options = {"scale": 0.125, "window": window, "softcap": softcap, "sinks": sinks}
    ours = node_attention(query, kv, nodes, **options)
    exact = dense_attention(query, kv, rows, torch.float64, **options)
    plain = dense_attention(query, kv, rows, dtype, **options)
    assert ours.dtype == dtype
    error, allowed = (ours.double() - exact).abs().max(), (plain.double() - exact).abs().max()
    assert error <= 2 * allowed, (float(error), float(allowed))
    spec = reference(query, kv.nan_to_num(0), nodes, **options)
    assert (spec.double() - exact).abs().max() <= 2 * allowed
    return ours


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
def test_head_dims_and_dtypes(dim: int, dtype: torch.dtype) -> None:
    rows = grow_forest(np.random.default_rng(dim), 16, trunk=5, branches=[2], tail=20)
    check(rows, Shape(dim=dim), dtype, seed=dim)


@pytest.mark.parametrize("block_size", [1, 2, 4, 8, 32, 64, 128])
def test_block_sizes(block_size: int) -> None:
    rows = grow_forest(np.random.default_rng(block_size), block_size, trunk=3, branches=[2, 1], tail=40)
    check(rows, Shape(block_size=block_size), torch.bfloat16, seed=block_size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 5])
def test_every_score_option(dtype: torch.dtype, queries: int) -> None:
    rows = grow_forest(np.random.default_rng(3), 16, trunk=6, branches=[2], tail=30, queries=queries)
    check(rows, Shape(), dtype, window=37, softcap=0.4, with_sinks=True)
    check(rows, Shape(), dtype, window=37, split=64)
    check(rows, Shape(), dtype, softcap=0.4)
    check(rows, Shape(), dtype, with_sinks=True, split=64)


def test_a_window_may_hide_whole_items() -> None:
    rows = grow_forest(np.random.default_rng(4), 4, trunk=40, branches=[2, 2], tail=6)
    check(rows, Shape(block_size=4), window=1)
    check(rows, Shape(block_size=4), window=9, split=32, with_sinks=True)


def test_512_rows_on_one_trunk() -> None:
    """32 branches of it, each with 16 rows that have not parted yet."""
    grown = grow_forest(np.random.default_rng(5), 4, trunk=12, branches=[32], tail=1)
    order = np.random.default_rng(6).permutation(512).reshape(32, 16).tolist()
    rows = [replace(row, queries=(q,)) for row, own in zip(grown, order, strict=True) for q in own]
    check(rows, Shape(heads=2, kv_heads=1, block_size=4), torch.bfloat16)


def with_an_empty_node(arrays: Arrays, place: int) -> Arrays:
    """One item more, of no tokens, for all queries, of which each has equally many parts; its part is the
    place-th that is merged."""
    count, parts = len(arrays.merged), arrays.num_parts + np.arange(len(arrays.merged))
    item = [len(arrays.queries), count, 0, 0, 0, arrays.num_parts, 0, 0]
    merged = np.insert(arrays.merge_parts.reshape(count, -1), place, parts, axis=1)
    return replace(
        arrays,
        small_items=np.concatenate([arrays.small_items, np.array([item], np.int32)]),
        queries=np.concatenate([arrays.queries, arrays.merged]),
        merge_offsets=(np.arange(count + 1) * merged.shape[1]).astype(np.int32),
        merge_parts=merged.ravel().astype(np.int32),
        num_parts=arrays.num_parts + count,
    )


@pytest.mark.parametrize("with_sinks", [False, True])
def test_a_node_without_tokens_changes_no_bit(with_sinks: bool) -> None:
    rows = grow_forest(np.random.default_rng(13), 16, trunk=2, branches=[3], tail=9)
    query, kv = tensors(rows, Shape(), torch.bfloat16, 0)
    sinks = torch.randn(4, generator=torch.Generator().manual_seed(1)) if with_sinks else None
    options = {"scale": 0.125, "window": None, "softcap": None, "sinks": sinks}
    arrays = plan_rows(rows, 16, 3, (4, 16))
    without = node_attention(query, kv, node_list(arrays, CPU), **options)
    for place in (0, 1, 2):
        more = with_an_empty_node(arrays, place)
        check_nodes(more, kv.shape[2], 3, 16)
        assert torch.equal(node_attention(query, kv, node_list(more, CPU), **options), without)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_queries_that_have_no_tokens_at_all_are_zero(causal: bool, with_sinks: bool) -> None:
    """One writes directly, one is merged from a part of nothing, one from no part."""
    items = np.array([[0, 1, 0, 0, 0, -1, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]], np.int32)
    none, two = np.zeros((0, 8), np.int32), np.array([0, 1], np.int32)
    merged, offsets = np.array([1, 2], np.int32), np.array([0, 1, 1], np.int32)
    positions = np.zeros(3, np.int32)
    arrays = Arrays(items, none, two[:1], two, positions, merged, offsets, two[:1], 1, causal)
    check_nodes(arrays, 1, 3, 16)
    query, kv = torch.randn(4, 3, 64), torch.full((2, 2, 1, 16, 64), torch.nan)
    options = {"scale": 1.0, "window": None, "softcap": None, "sinks": torch.ones(4) if with_sinks else None}
    for operation in (node_attention, reference):
        assert operation(query, kv, node_list(arrays, CPU), **options).eq(0).all()


def test_a_deep_tree() -> None:
    rows = grow_forest(np.random.default_rng(6), 2, trunk=1, branches=[1, 2, 1, 1, 2, 1, 1, 1], tail=3)
    check(rows, Shape(block_size=2))


def test_one_row_is_written_directly() -> None:
    rows = grow_forest(np.random.default_rng(7), 16, trunk=2, branches=[], tail=9)
    assert plan_rows(rows, 16, 1, (4, 16)).num_parts == 0
    check(rows, Shape(), torch.float16)


def test_a_prefill_chunk_behind_a_cached_prefix() -> None:
    rows = grow_forest(np.random.default_rng(8), 8, trunk=7, branches=[], tail=3, queries=45)
    for dtype in DTYPES:
        check(rows, Shape(heads=6, block_size=8), dtype)


def test_padding_tokens_are_zero_and_rows_mix() -> None:
    rng = np.random.default_rng(9)
    forest = grow_forest(rng, 8, trunk=3, branches=[3], tail=9, queries=2)
    out = check(forest, Shape(block_size=8), torch.bfloat16, padding=3)
    assert (out[-3:] == 0).all()


@pytest.mark.parametrize("group", [1, 3, 7, 16, 24, 71])
def test_group_sizes(group: int) -> None:
    rows = grow_forest(np.random.default_rng(group), 16, trunk=2, branches=[3], tail=20)
    check(rows, Shape(heads=2 * group), torch.bfloat16)


@settings(max_examples=12)
@given(st.data())
def test_any_forest(data: st.DataObject) -> None:
    draw = data.draw
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    rows = grow_forest(
        np.random.default_rng(draw(st.integers(0, 2**31))),
        block_size,
        trunk=draw(st.integers(1, 6)),
        branches=draw(st.lists(st.integers(1, 3), max_size=3)),
        tail=draw(st.integers(1, 3 * block_size)),
        queries=draw(st.sampled_from([1, 1, 2, 9])),
    )
    check(
        rows,
        Shape(*draw(st.sampled_from([(2, 2), (3, 1), (4, 2)])), draw(st.sampled_from([16, 64])), block_size),
        draw(st.sampled_from(DTYPES)),
        split=draw(st.sampled_from([64, 1 << 20])),
        seed=draw(st.integers(0, 2**31)),
        window=draw(st.none() | st.integers(1, 60)),
        softcap=draw(st.none() | st.floats(0.2, 30)),
        with_sinks=draw(st.booleans()),
    )


def test_a_row_has_the_same_bits_whatever_shares_its_items() -> None:
    """With items split at fixed lengths, and in one tile shape."""
    shape = Shape(block_size=8)
    rows = grow_forest(np.random.default_rng(10), 8, trunk=20, branches=[6], tail=30)
    query, kv = tensors(rows, shape, torch.bfloat16, 0)
    options = {"scale": 0.125, "window": None, "softcap": None, "sinks": None}
    together = node_attention(query, kv, node_list(plan_rows(rows, 8, 6, (0, 8), 64), CPU), **options)
    for keep in (rows[:2], rows[1:5]):
        chosen = torch.tensor([row.queries[0] for row in keep])
        few = [replace(row, queries=(i,)) for i, row in enumerate(keep)]
        arrays = plan_rows(few, 8, len(few), (0, 8), 64)
        alone = node_attention(query[:, chosen], kv, node_list(arrays, CPU), **options)
        assert torch.equal(alone, together[chosen])


def test_a_buffer_with_room_serves_every_list() -> None:
    """As under a captured graph: one grid, one buffer, lists of different lengths, and parts that are poison
    before they are written."""
    shape = Shape(block_size=8)
    rng = np.random.default_rng(11)
    forests = [grow_forest(rng, 8, trunk=t, branches=[b], tail=9) for t, b in ((2, 4), (6, 2), (1, 1))]
    lists = [plan_rows(rows, 8, 4, (2, 8), 16) for rows in forests]
    sizes = [NodeCapacity.of(a) for a in lists]
    capacity = NodeCapacity(*(max(getattr(s, n) for s in sizes) + 2 for n in NodeCapacity.__slots__))
    capacity = replace(capacity, positions=4)
    buffer = NodeListBuffer(capacity, CPU)
    for rows, arrays in zip(forests, lists, strict=True):
        query, kv = tensors(rows, shape, torch.float32, 1, 4 - len(rows))
        out = node_attention(
            query, kv, buffer.fill(arrays), scale=0.125, window=None, softcap=None, sinks=None
        )
        exact = dense_attention(query, kv, rows, torch.float64, scale=0.125)
        assert (out.double() - exact).abs().max() < 2e-6


def test_a_buffer_refuses_what_does_not_fit() -> None:
    rows = grow_forest(np.random.default_rng(12), 8, trunk=2, branches=[3], tail=9, queries=2)
    arrays = plan_rows(rows, 8, 6, (2, 8))
    buffer = NodeListBuffer(replace(NodeCapacity.of(arrays), blocks=1), CPU, causal=True)
    with pytest.raises(ValueError, match="blocks: "):
        buffer.fill(arrays)
    with pytest.raises(ValueError, match="causal"):
        NodeListBuffer(NodeCapacity.of(arrays), CPU).fill(arrays)
