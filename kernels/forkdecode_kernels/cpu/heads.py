"""Items of attention, a kv head each, over threads; and what comes back of an item's query heads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from forkdecode_kernels.cpu.half import Stored, narrow
from forkdecode_kernels.cpu.pieces import F32, Scratch
from forkdecode_kernels.cpu.selection.jit import kernel
from forkdecode_kernels.cpu.selection.parallel import for_each_block

QUERY_ROWS = 96
"""Query rows of a kv head that read a piece together: its scores stay in the second cache level."""
THREAD_WORK = 3_000_000
"""Multiplications worth a thread of their own: waking one takes tens of microseconds."""


def for_each_item(
    items: int, multiplications: int, make_work: Callable[[], Callable[[int, int], None]]
) -> None:
    """See for_each_block; on as many threads as the work is worth."""
    threads = min(torch.get_num_threads(), max(1, multiplications // THREAD_WORK))
    for_each_block(items, 1 if threads > 1 else items, threads, make_work)


def settings_of(
    scale: float, softcap: float | None, sinks: torch.Tensor | None
) -> tuple[np.float32, np.float32, F32]:
    """As kernels take them: softcap 0 is none; sinks [H] or empty."""
    sink = np.empty(0, np.float32) if sinks is None else sinks.float().numpy()
    return np.float32(scale), np.float32(0.0 if softcap is None else softcap), sink


@kernel
def hand_over(scratch: Scratch, count: int, token: int, head: int, result: Stored) -> None:
    """The first `count` query rows of a kv head, G of each token from `token` on -> result [T, H, D]."""
    heads, dim = scratch.alone.shape[0], result.shape[2]
    for m in range(count):
        norm = np.float32(1.0) / scratch.state[1, m]
        h, t = head * heads + m % heads, token + m // heads
        for d in range(dim):
            result[t, h, d] = narrow(scratch.out[m, d] * norm, result[t, h, d])
