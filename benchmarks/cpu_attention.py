"""A step's attention on the CPU: the compiled kernel beside torch's matrix products over the same plan.

    python -m benchmarks.cpu_attention [--dtype float32|bfloat16] [--layers N] [--rounds N] [--record FILE]

SmolLM2-135M's heads (9 query, 3 kv, D = 64) and its 30 layers, 32 tokens generated, blocks of 16 scattered
over the cache. Milliseconds of one thread's CPU time a step, the least of the rounds, the two in turn; each
layer has a cache of its own, so that none finds its blocks in the processor's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.record import record
from forkdecode_kernels.attention_work import AttentionWork, make_work
from forkdecode_kernels.cpu.attention import CpuAttentionPlan, cpu_attention
from forkdecode_kernels.cpu.decode import plan_decode
from forkdecode_kernels.cpu.decode_rows import plan_rows
from forkdecode_kernels.cpu.tables import clip

HEADS, KV_HEADS, DIM, SIZE, BLOCKS, LAYERS = 9, 3, 64, 16, 1_400, 30
GENERATED = 32
SHORT = tuple(40 + i * 160 // 15 for i in range(16))
CASES = {
    "1,000 tokens, 32 samples": (32, (1_000,)),
    "1,000 tokens, beam 8": (8, (1_000,)),
    "16 prompts, beam 4": (4, SHORT),
    "16 prompts, 8 samples": (8, SHORT),
    "16 prompts, greedy": (1, SHORT),
}


@dataclass(frozen=True)
class Rows:
    """A group's tables, as forkdecode_kernels.attention_work wants them."""

    token_start: int
    trunk: NDArray[np.int32]
    tails: NDArray[np.int32]
    context_len: int


def groups(rows: int, lengths: tuple[int, ...]) -> Iterator[Rows]:
    ids = np.random.default_rng(1).permutation(BLOCKS - 1).astype(np.int32)
    for i, length in enumerate(lengths):
        context, trunk = length + GENERATED, length // SIZE if rows > 1 else 0
        columns = -(-context // SIZE) - trunk
        shared, tails, ids = np.split(ids, [trunk, trunk + rows * columns])
        yield Rows(i * rows, shared, tails.reshape(rows, columns), context)


def plans(work: AttentionWork, kv: torch.Tensor) -> dict[str, CpuAttentionPlan]:
    tables = [clip(group, SIZE, None) for group in work.decodes]
    batches = plan_decode(tables, work, HEADS, kv)
    none, index = torch.empty(0, dtype=torch.int64), torch.cat([batch.output_index for batch in batches])
    return {
        "compiled": CpuAttentionPlan(work, None, plan_rows(tables, HEADS // KV_HEADS), None, (), none, ()),
        "torch": CpuAttentionPlan(work, None, None, None, batches, index, ()),
    }


def milliseconds(query: torch.Tensor, caches: torch.Tensor, plan: CpuAttentionPlan) -> float:
    begin = time.thread_time()
    for kv in caches:
        cpu_attention(query, kv, plan, scale=0.125, softcap=None, sinks=None)
    return (time.thread_time() - begin) * 1e3 * LAYERS / len(caches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dtype = getattr(torch, args.dtype)
    kv = torch.randn(args.layers, 2, KV_HEADS, BLOCKS, SIZE, DIM, dtype=dtype)
    for name, (rows, lengths) in CASES.items():
        query = torch.randn(HEADS, rows * len(lengths), DIM, dtype=dtype)
        work = make_work([], list(groups(rows, lengths)), query.shape[1], SIZE, BLOCKS - 1)
        least: dict[str, float] = {}
        for _ in range(args.rounds):
            for way, plan in plans(work, kv[0]).items():
                least[way] = min(least.get(way, np.inf), milliseconds(query, kv, plan))
        print(f"{name:26s}" + "".join(f"{way:>10s} {ms:7.1f}" for way, ms in least.items()), flush=True)
        if args.record:
            record("cpu_attention", {"case": name, "dtype": args.dtype, "ms": least}, args.record)


if __name__ == "__main__":
    main()
