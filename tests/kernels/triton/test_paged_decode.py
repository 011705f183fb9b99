"""Plain paged decode against each row alone in float64, and against the node list."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode_kernels.reference.paged_decode import paged_decode as reference
from forkdecode_kernels.triton.paged_decode import paged_decode
from tests.kernels.triton.node_cases import dense_attention, grow_forest
from tests.kernels.triton.test_node_attention import DTYPES, Shape, tensors


def check(
    seed: int, shape: Shape, dtype: torch.dtype, splits: int, tail: int = 30, **options: object
) -> None:
    rows = grow_forest(np.random.default_rng(seed), shape.block_size, trunk=seed % 4, branches=[3], tail=tail)
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
    assert (ours.double() - exact).abs().max() <= 2 * allowed
    spec = reference(query, kv.nan_to_num(0), tables, lengths, **options)
    assert (spec.double() - exact).abs().max() <= 2 * allowed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("splits", [1, 3])
def test_every_option(dtype: torch.dtype, splits: int) -> None:
    check(3, Shape(), dtype, splits)
    check(3, Shape(), dtype, splits, window=21, softcap=0.5, sinks=torch.randn(4))


@settings(max_examples=12)
@given(
    st.integers(0, 1000),
    st.sampled_from([1, 4, 16, 128]),
    st.sampled_from([64, 80, 128]),
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
    check(seed, Shape(*heads, dim, block_size), dtype, splits, window=window)
