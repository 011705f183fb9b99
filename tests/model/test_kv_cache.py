"""The KV cache's sizes and memory."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
import torch

from forkdecode.errors import CapacityError
from forkdecode.model.info import ModelInfo
from forkdecode.model.kv_cache import KvCache, bytes_per_block
from forkdecode.step import BlockMoves

INFO = ModelInfo("m", 10, 100, (), ((2, 8), (1, 4), (2, 8)), (None, 5, None), "float32", 0)


def test_bytes_per_block_counts_every_layer() -> None:
    per_token = 2 * (2 * 8 + 1 * 4 + 2 * 8)
    assert bytes_per_block(INFO, 16, torch.float32) == per_token * 16 * 4
    assert bytes_per_block(INFO, 16, "bfloat16") == per_token * 16 * 2
    with pytest.raises(ValueError, match="dtype: int8 is not supported"):
        bytes_per_block(INFO, 16, torch.int8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_layers_of_unlike_shapes(dtype: torch.dtype) -> None:
    cache = KvCache(INFO, 4, 7, 3, dtype, torch.device("cpu"))
    assert [tuple(cache.layer(i).shape) for i in range(3)] == [
        (2, 2, 8, 4, 8),
        (2, 1, 8, 4, 4),
        (2, 2, 8, 4, 8),
    ]
    assert all(cache.layer(i).is_contiguous() and cache.layer(i).dtype == dtype for i in range(3))
    for i in range(3):
        cache.layer(i)[:, :, :7] = torch.randn_like(cache.layer(i)[:, :, :7])
    before = [cache.layer(i).clone() for i in range(3)]
    ids = np.array([1, 5], np.int32)
    cache.copy(BlockMoves(ids, np.array([2, 3], np.int32)))
    cache.swap_out(BlockMoves(ids, np.array([2, 0], np.int32)))
    cache.zero(ids)
    cache.swap_in(BlockMoves(np.array([0, 2], np.int32), np.array([6, 4], np.int32)))
    for i, old in enumerate(before):
        now = cache.layer(i)
        for block, source in ((2, 1), (3, 5), (6, 5), (4, 1), (0, 0)):
            assert torch.equal(now[:, :, block], old[:, :, source])
        assert now[:, :, [1, 5, cache.null_block]].count_nonzero() == 0


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_untouched_blocks_take_no_memory() -> None:
    info = ModelInfo("m", 10, 100, (), ((8, 128),), (None,), "float32", 0)
    count = 2 * 2**30 // bytes_per_block(info, 16, torch.float32)
    before = _resident()
    cache = KvCache(info, 16, count, count // 2, torch.float32, torch.device("cpu"))
    cache.layer(0)[:, :, count // 2] = 1.0
    assert cache.layer(0)[:, :, count // 2].sum() == 2 * 8 * 16 * 128
    assert cache.layer(0)[:, :, count // 2 + 1].count_nonzero() == 0
    assert _resident() - before < 128 * 2**20


def test_more_memory_than_there_is_names_the_option() -> None:
    info = ModelInfo("m", 10, 100, (), ((8, 128),), (None,), "float32", 0)
    with pytest.raises(CapacityError, match="kv_memory"):
        KvCache(info, 16, 2**31 - 2, 0, torch.float32, torch.device("cpu"))
