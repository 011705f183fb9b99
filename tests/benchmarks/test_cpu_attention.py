"""What benchmarks.cpu_attention compares computes the same."""

from __future__ import annotations

import torch

from benchmarks.cpu_attention import BLOCKS, DIM, HEADS, KV_HEADS, SIZE, groups, plans
from forkdecode_kernels.attention_work import make_work
from forkdecode_kernels.cpu.attention import cpu_attention


def test_both_ways_give_the_same_attention() -> None:
    generator = torch.Generator().manual_seed(1)
    kv = torch.randn(2, KV_HEADS, BLOCKS, SIZE, DIM, generator=generator)
    for rows, lengths in ((1, (40, 61)), (3, (90, 300))):
        query = torch.randn(HEADS, rows * len(lengths), DIM, generator=generator)
        work = make_work([], list(groups(rows, lengths)), query.shape[1], SIZE, BLOCKS - 1)
        compiled, products = (
            cpu_attention(query, kv, plan, scale=0.125, softcap=None, sinks=None)
            for plan in plans(work, kv).values()
        )
        assert compiled.abs().amax() > 0.1
        torch.testing.assert_close(compiled, products, atol=2e-5, rtol=2e-5)
