"""Attention over a node list as it is called: what it refuses. What it computes is held against single rows
in tests/kernels/triton."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from forkdecode_kernels.node_attention import node_attention
from forkdecode_kernels.node_list import NodeList, node_list


def one_item() -> NodeList:
    """One query over five tokens, in two blocks of four."""
    names = ("blocks", "queries", "positions", "merged", "merge_offsets", "merge_parts")
    values = ([1, 0], [0], [4], [], [0], [])
    arrays = {n: np.array(v, np.int32) for n, v in zip(names, values, strict=True)}
    items = {"small_items": np.array([[0, 1, 0, 5, 0, -1, 0, 0]], np.int32)}
    none = {"large_items": np.zeros((0, 8), np.int32), "num_parts": 0, "causal": False}
    return node_list(SimpleNamespace(**arrays, **items, **none), torch.device("cpu"))


def test_one_query_over_five_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 1, 8, generator=generator)
    kv = torch.randn(2, 1, 2, 4, 8, generator=generator)
    keys, values = kv[:, 0, [1, 0]].flatten(1, 2)[:, :5]
    wanted = (query[:, 0] @ keys.T).softmax(-1) @ values
    torch.testing.assert_close(node_attention(query, kv, one_item(), scale=1.0)[0], wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("query", "kv", "sinks", "problem"),
    [
        ((3, 1, 8), (2, 2, 2, 4, 8), None, "does not fit kv"),
        ((2, 1, 8), (2, 1, 2, 4, 16), None, "does not fit kv"),
        ((2, 1, 8), (2, 1, 2, 6, 8), None, "block_size is 6; must be a power of two"),
        ((2, 1, 8), (2, 1, 2, 256, 8), None, "block_size is 256; must be a power of two, 1 to 128"),
        ((2, 1, 512), (2, 1, 2, 4, 512), None, "head_dim is 512; must be 256 at most"),
        ((2, 3, 8), (2, 1, 2, 4, 8), None, r"positions is \[1\]; must be \[T = 3\]"),
        ((2, 1, 8), (2, 1, 2, 4, 8), (1,), r"must be \[H = 2\]"),
    ],
)
def test_what_does_not_fit_is_named(
    query: tuple[int, ...], kv: tuple[int, ...], sinks: tuple[int, ...] | None, problem: str
) -> None:
    options: dict[str, Any] = {"scale": 1.0, "sinks": None if sinks is None else torch.zeros(sinks)}
    with pytest.raises(ValueError, match=problem):
        node_attention(torch.zeros(query), torch.zeros(kv), one_item(), **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_types_that_do_not_fit_are_named(dtype: torch.dtype) -> None:
    query, kv = torch.zeros(2, 1, 8, dtype=dtype), torch.zeros(2, 1, 2, 4, 8)
    with pytest.raises(ValueError, match="must be one of float32, float16, bfloat16"):
        node_attention(query, kv.to(dtype) if dtype == torch.float64 else kv, one_item(), scale=1.0)


def test_another_device_is_named() -> None:
    with pytest.raises(ValueError, match="kv on meta, nodes on cpu"):
        node_attention(torch.zeros(2, 1, 8), torch.zeros(2, 1, 2, 4, 8, device="meta"), one_item(), scale=1.0)
