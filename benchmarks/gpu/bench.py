"""Where gpu_check measures, how it takes times, and the ceilings that it measures against."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_SWEPT = 512 << 20
"""Bytes: more than any cache of a GPU holds."""
_SHARES = {torch.bfloat16: 1 / 64, torch.float16: 1 / 512}


@dataclass(frozen=True)
class Bench:
    """Where and how it is measured. rehearse: small shapes on the CPU, in Triton's interpreter.

    bandwidth: bytes a second of a copy, read and written ones counted. flops: FLOP a second of a matrix
    product. Both NaN before they are known, and so is then what is said as a share of them.
    """

    rehearse: bool
    bandwidth: float = math.nan
    flops: float = math.nan

    @property
    def device(self) -> torch.device:
        """Of all tensors."""
        return torch.device("cpu" if self.rehearse else "cuda")

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, keys, values and logits."""
        return torch.bfloat16

    def normal(self, *shape: int) -> torch.Tensor:
        """Normally distributed numbers, the same each time for a shape."""
        generator = torch.Generator(self.device).manual_seed(0)
        made = torch.randn(shape, generator=generator, dtype=torch.float32, device=self.device)
        return made.to(self.dtype)

    def timed(self, work: Callable[[], object], repeats: int = 20) -> float:
        """Median seconds, after warm-up. On a GPU by events, with the L2 cache swept in between; the sweep
        also hides what the launch of the work costs the host. It reads: what it wrote would be written back
        to memory while the work runs, and count as the work's."""
        if self.rehearse:
            return self.waited(work)
        sweep = torch.zeros(_SWEPT // 4, dtype=torch.float32, device=self.device)
        times: list[float] = []
        for i in range(repeats + 3):
            sweep.sum()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            end.synchronize()
            if i >= 3:
                times.append(begin.elapsed_time(end) / 1000)
        return sorted(times)[len(times) // 2]

    def waited(self, work: Callable[[], object], repeats: int = 50) -> float:
        """Median seconds of the host's clock, for work that the host waits for by itself."""
        times = []
        for _ in range(1 if self.rehearse else repeats + 3):
            begin = time.perf_counter()
            work()
            times.append(time.perf_counter() - begin)
        kept = sorted(times[3:] or times)
        return kept[len(kept) // 2]

    def replayed(self, work: Callable[[], object]) -> Callable[[], object]:
        """The work captured in a CUDA graph, as decode steps run it: several launches for the price of one.
        In the rehearsal the work itself."""
        if self.rehearse:
            return work
        work()  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay


def ceilings(bench: Bench) -> dict[str, Any]:
    """Bytes a second of a copy (read and write counted) and bf16 FLOP a second of a matrix product."""
    size = 1 << (16 if bench.rehearse else 30)
    source = torch.zeros(size, dtype=torch.int8, device=bench.device)
    target = torch.empty_like(source)
    n = 64 if bench.rehearse else 8192
    a = bench.normal(n, n)
    return {
        "bandwidth": 2 * size / bench.timed(lambda: target.copy_(source)),
        "flops": 2 * n**3 / bench.timed(lambda: a @ a),
        "ok": True,
    }


def allowed_error(exact: torch.Tensor, dtype: torch.dtype) -> float:
    """How far results in `dtype` may be from exact ones: a few units in the last place of the largest. A
    fixed bound would be far above what losing some keys of thousands does to a mean of random values."""
    return 1e-4 if dtype == torch.float32 else float(exact.abs().max()) * _SHARES[dtype]


def within(errors: Mapping[str, float], allowed: float) -> bool:
    """Whether all are. NaN is not."""
    return all(error <= allowed for error in errors.values())
