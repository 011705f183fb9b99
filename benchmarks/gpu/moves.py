"""What moves keys and values, for gpu_check: copies of blocks, and a token of each row written."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.cases import Model
from forkdecode_kernels.triton.copy_blocks import copy_blocks
from forkdecode_kernels.triton.write_kv import write_kv


def block_moves(bench: Bench) -> dict[str, Any]:
    """A step's copies at the size of an 8B model (32 layers, 188 blocks), and one token a row written; each
    must change what it is to change, to the bit, and nothing else."""
    model = Model()
    layers, pairs_n, blocks = (2, 3, 10) if bench.rehearse else (32, 188, 600)
    shape = (layers, 2, model.kv_heads, blocks, model.block_size, model.dim)
    pool = bench.normal(*shape)
    pairs = torch.from_numpy(np.random.default_rng(0).permutation(blocks)[: 2 * pairs_n].reshape(-1, 2))
    expected = pool.clone()
    expected[:, :, :, pairs[:, 1]] = pool[:, :, :, pairs[:, 0]]
    device_pairs = pairs.to(bench.device)
    count = torch.full((1,), pairs_n, dtype=torch.int32, device=bench.device)
    copy_blocks(pool, pool, device_pairs, count)
    copied = torch.equal(pool, expected)
    del expected
    rows = 8 if bench.rehearse else 512
    key, value = bench.normal(2, model.kv_heads, rows, model.dim)
    slots = torch.randperm(blocks * model.block_size)[:rows].to(bench.device)
    slots[1::4] = -1  # padding, which is written nowhere
    kept = slots >= 0
    wanted = pool[0].clone()
    for half, new in zip(wanted, (key, value), strict=True):
        half.flatten(1, 2)[:, slots[kept]] = new[:, kept]
    write_kv(pool[0], key, value, slots)
    written = torch.equal(pool[0], wanted)
    copies = bench.replayed(lambda: copy_blocks(pool, pool, device_pairs, count))
    writes = bench.replayed(lambda: write_kv(pool[0], key, value, slots))
    seconds = bench.timed(copies)
    moved = 2 * pairs_n * pool[:, :, :, 0].numel() * bench.dtype.itemsize
    return {
        "copy_us": 1e6 * seconds,
        "copy_share_of_bandwidth": moved / seconds / bench.bandwidth,
        "write_us": 1e6 * bench.timed(writes),
        "copied": copied,
        "written": written,
        "ok": copied and written,
    }
