"""Items of attention, a kv head each: how large they are, and what comes back of their query heads."""

from __future__ import annotations

import numpy as np

from forkdecode_kernels.cpu.half import Stored, narrow
from forkdecode_kernels.cpu.pieces import Scratch
from forkdecode_kernels.cpu.selection.jit import kernel

QUERY_ROWS = 96
"""Query rows of a kv head that read a piece together: its scores stay in the second cache level."""
THREAD_WORK = 3_000_000
"""Multiplications worth a thread of their own: waking one takes tens of microseconds."""


@kernel
def hand_over(scratch: Scratch, count: int, token: int, head: int, result: Stored) -> None:
    """The first `count` query rows of a kv head, G of each token from `token` on -> result [T, H, D]."""
    heads, dim = scratch.alone.shape[0], result.shape[2]
    for m in range(count):
        norm = np.float32(1.0) / scratch.state[1, m]
        h, t = head * heads + m % heads, token + m // heads
        for d in range(dim):
            result[t, h, d] = narrow(scratch.out[m, d] * norm, result[t, h, d])
