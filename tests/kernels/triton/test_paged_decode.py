"""Plain paged decode against each row alone in float64, and against its reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode_kernels.reference.paged_decode import paged_decode as reference
from forkdecode_kernels.triton.paged_decode import paged_decode
from tests.kernels.triton.node_cases import Row, dense_attention, grow_forest
from tests.kernels.triton.test_node_attention import DTYPES, Shape, tensors


def some_rows(seed: int, block_size: int, branches: Sequence[int] = (3,), tail: int = 30) -> list[Row]:
    rng = np.random.default_rng(seed)
    return grow_forest(rng, block_size, trunk=seed % 4, branches=branches, tail=tail)


def check(
    rows: list[Row], shape: Shape, dtype: torch.dtype, splits: int, seed: int = 0, **options: object
) -> None:
    """Rule of tolerance: at most twice the error of the same attention in plain torch at this precision."""
    query, kv = tensors(rows, shape, dtype, seed)
    order = sorted(rows, key=lambda row: row.queries)
    tables = torch.zeros(len(rows), max(len(row.blocks) for row in rows), dtype=torch.int32)
    for i, row in enumerate(order):
        tables[i, : len(row.blocks)] = torch.tensor(row.blocks)
    lengths = torch.tensor([row.length for row in order], dtype=torch.int32)
    options = {"scale": 0.125, "window": None, "softcap": None, "sinks": None, **options}
    ours = paged_decode(query, kv, tables, lengths, splits=splits, **options)
    exact = dense_attention(query, kv, rows, torch.float64, **options)
    allowed = (dense_attention(query, kv, rows, dtype, **options).double() - exact).abs().max()
    assert ours.dtype == dtype
    assert (ours.double() - exact).abs().max() <= 2 * allowed
    spec = reference(query, kv.nan_to_num(0), tables, lengths, **options)
    assert (spec.double() - exact).abs().max() <= 2 * allowed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("splits", [1, 3])
def test_every_option(dtype: torch.dtype, splits: int) -> None:
    rows = some_rows(3, 16)
    check(rows, Shape(), dtype, splits)
    sinks = torch.randn(4, generator=torch.Generator().manual_seed(3))
    check(rows, Shape(), dtype, splits, window=21, softcap=0.5, sinks=sinks)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
def test_head_dims_and_dtypes(dim: int, dtype: torch.dtype) -> None:
    splits = 1 if dtype == torch.float16 else 2
    check(some_rows(dim + 1, 16, (2,)), Shape(dim=dim), dtype, splits, seed=dim)


@pytest.mark.parametrize("group", [1, 7, 16, 24, 71])
def test_group_sizes(group: int) -> None:
    check(some_rows(group, 16, (2,)), Shape(heads=2 * group), torch.bfloat16, splits=2)


@pytest.mark.parametrize("splits", [1, 7], ids=["one program", "more programs than tiles"])
def test_one_row(splits: int) -> None:
    check(some_rows(5, 16, ()), Shape(), torch.float16, splits)


def test_512_rows_on_one_trunk() -> None:
    """16 branches of it, each with 32 rows that have not parted yet."""
    grown = grow_forest(np.random.default_rng(5), 4, trunk=3, branches=[16], tail=3)
    order = np.random.default_rng(6).permutation(512).reshape(16, 32).tolist()
    rows = [replace(row, queries=(q,)) for row, own in zip(grown, order, strict=True) for q in own]
    check(rows, Shape(heads=2, kv_heads=1, block_size=4), torch.bfloat16, splits=1)


@settings(max_examples=12)
@given(
    st.integers(0, 1000),
    st.sampled_from([1, 4, 16, 128]),
    st.sampled_from([64, 80, 96, 128, 256]),
    st.sampled_from([(2, 2), (3, 1), (8, 2)]),
    st.sampled_from(DTYPES),
    st.sampled_from([1, 2, 7]),
    st.none() | st.integers(1, 50),
)
def test_any_rows(
    seed: int,
    block_size: int,
    dim: int,
    heads: tuple[int, int],
    dtype: torch.dtype,
    splits: int,
    window: int | None,
) -> None:
    check(some_rows(seed, block_size), Shape(*heads, dim, block_size), dtype, splits, seed, window=window)
