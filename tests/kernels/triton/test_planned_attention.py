"""From block tables to outputs: the planner's node list through the kernels equals row by row attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from forkdecode.kv import ForestPlanner, ItemShape
from forkdecode_kernels.attention import attention
from forkdecode_kernels.attention_work import make_work
from forkdecode_kernels.node_list import node_list
from forkdecode_kernels.reference.attention import attention as by_row
from forkdecode_kernels.triton.node_attention import node_attention
from forkdecode_kernels.triton.tiles import tile_queries
from tests.kernels.attention_cases import Blocks, Rows, Segment, Shape, make_kv
from tests.kernels.triton.node_cases import Row, dense_attention

SHAPE = Shape(heads=4, kv_heads=2, dim=32, block_size=4)


def step(seed: int) -> tuple[list[Segment], list[Rows], torch.Tensor, torch.Tensor]:
    """A prefill chunk behind a cached prefix, its recompute in two segments, a group on the same prefix
    whose rows have parted twice, and padding."""
    rng = np.random.default_rng(seed)
    blocks = Blocks(120, rng)
    prefix = blocks.take(6)
    chunk = Segment(0, 9, 26, np.concatenate([prefix, blocks.take(3)]))
    fork = Segment(9, 3, 24, np.concatenate([prefix, blocks.take(1)]))
    tails = np.repeat(blocks.take(2)[None], 5, 0)
    tails = np.column_stack([tails, blocks.take(2)[[0, 0, 1, 1, 1]], blocks.take(5)])
    rows = Rows(12, prefix, tails[rng.permutation(5)], 38)
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(SHAPE.heads, 19, SHAPE.dim, generator=generator)
    return [chunk, fork], [rows], query, make_kv(SHAPE, 120, generator)


def as_rows(segments: list[Segment], decodes: list[Rows]) -> list[Row]:
    rows = []
    for s in segments:
        tokens = range(s.token_start, s.token_start + s.token_count)
        rows.append(Row(tuple(s.blocks.tolist()), s.position + s.token_count, tuple(tokens)))
    for d in decodes:
        for i, tail in enumerate(d.tails.tolist()):
            rows.append(Row((*d.trunk.tolist(), *tail), d.context_len, (d.token_start + i,)))
    return rows


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("window", [None, 11])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_is_as_exact_as_torch_row_by_row(invariant: bool, window: int | None, dtype: torch.dtype) -> None:
    segments, decodes, query, kv = step(1)
    query, kv = query.to(dtype), kv.to(dtype)
    tiles = tile_queries(SHAPE.dim, dtype.itemsize, 2)
    shape = ItemShape(SHAPE.block_size, tiles, 2, SHAPE.kv_heads, 2)
    planner = ForestPlanner(shape, window=window, invariant=invariant)
    nodes = node_list(planner.plan(segments, decodes, 19), torch.device("cpu"))
    options = {"scale": 0.2, "window": window, "softcap": None, "sinks": None}
    ours = node_attention(query, kv, nodes, **options)
    rows = as_rows(segments, decodes)
    exact = dense_attention(query, kv, rows, torch.float64, scale=0.2, window=window)
    plain = dense_attention(query, kv, rows, dtype, scale=0.2, window=window)
    allowed = 2 * (plain.double() - exact).abs().max()
    work = make_work(segments, decodes, 19, SHAPE.block_size, 120)
    others = [attention(query, kv, nodes, **options), by_row(query, kv, work, **options)]
    for found in [ours, *others]:
        assert (found.double() - exact).abs().max() <= allowed
    assert (ours[17:] == 0).all()
