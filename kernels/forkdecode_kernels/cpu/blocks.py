"""Whole blocks from place to place, read once and written once."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.jit import entry
from forkdecode_kernels.cpu.selection.parallel import for_each_block

I64 = NDArray[np.int64]
THREAD_BYTES = 1 << 20
"""Bytes to be moved that are worth a thread of their own."""


def copy_blocks(source: torch.Tensor, target: torch.Tensor, pairs: torch.Tensor) -> bool:
    """See forkdecode_kernels.copy_blocks. False, with nothing done, where a block is no whole number of
    words."""
    if source.shape[-2] * source.shape[-1] * source.element_size() % 8:
        return False
    old, new, both = _words(source), _words(target), pairs.numpy()
    planes = len(old)
    threads = min(torch.get_num_threads(), max(1, planes * len(both) * old.shape[2] * 8 // THREAD_BYTES))

    def work(first: int, last: int) -> None:
        _copy(old, new, both, first, last)

    for_each_block(planes, max(1, -(-planes // (2 * threads))), threads, lambda: work)
    return True


def _words(pool: torch.Tensor) -> I64:
    """[layers * 2 * K, B, words of a block], the pool's own memory."""
    planes = pool.flatten(0, -4)
    words: I64 = planes.view(*planes.shape[:2], -1).view(torch.int64).numpy()
    return words


@entry
def _copy(source: I64, target: I64, pairs: I64, first: int, last: int) -> None:
    for plane in range(first, last):
        for i in range(len(pairs)):
            target[plane, pairs[i, 1]] = source[plane, pairs[i, 0]]
