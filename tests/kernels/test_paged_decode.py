"""Paged decode as it is called: what it computes where there is no GPU, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forkdecode_kernels.paged_decode import paged_decode


def arguments(**changed: Any) -> dict[str, Any]:
    """Two rows of 5 and 9 tokens in blocks of 4."""
    generator = torch.Generator().manual_seed(0)
    return {
        "query": torch.randn(4, 2, 8, generator=generator),
        "kv": torch.randn(2, 2, 6, 4, 8, generator=generator),
        "tables": torch.tensor([[3, 1, 0], [5, 0, 2]], dtype=torch.int32),
        "lengths": torch.tensor([5, 9], dtype=torch.int32),
        "scale": 0.5,
    } | changed


@pytest.mark.parametrize("splits", [1, 3])
def test_each_row_attends_to_its_own_tokens(splits: int) -> None:
    given = arguments(splits=splits)
    out = paged_decode(**given)
    for row, (blocks, length) in enumerate((([3, 1], 5), ([5, 0, 2], 9))):
        keys, values = given["kv"][:, :, blocks].flatten(2, 3)[:, :, :length].repeat_interleave(2, 1)
        scores = torch.einsum("hd,htd->ht", given["query"][:, row], keys) * 0.5
        wanted = torch.einsum("ht,htd->hd", scores.softmax(-1), values)
        torch.testing.assert_close(out[row], wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"kv": torch.zeros(2, 3, 6, 4, 8)}, "does not fit kv"),
        ({"kv": torch.zeros(2, 2, 6, 4, 8, dtype=torch.float16)}, "must be one of"),
        (
            {"query": torch.zeros(4, 2, 257), "kv": torch.zeros(2, 2, 6, 4, 257)},
            "head_dim is 257; must be 256",
        ),
        ({"tables": torch.zeros(2, 3, dtype=torch.int64)}, r"must be int32 \[2, n\]"),
        ({"lengths": torch.zeros(3, dtype=torch.int32)}, r"must be int32 \[2\]"),
        (
            {"lengths": torch.zeros(2, dtype=torch.int32, device="meta")},
            "on cpu, cpu, cpu, meta; must be on one device",
        ),
        ({"sinks": torch.zeros(2)}, r"must be \[H = 4\]"),
        ({"splits": 0}, "at least 1"),
    ],
    ids=["heads", "dtype", "dim", "tables", "lengths", "device", "sinks", "splits"],
)
def test_what_does_not_fit_is_named(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        paged_decode(**arguments(**changed))
