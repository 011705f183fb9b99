"""logsumexp of rows, and float32 copies of them with it subtracted."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.parallel import for_each_block
from forkdecode_kernels.cpu.selection.rows import as_numpy, subtract, to_float32
from forkdecode_kernels.cpu.selection.topk import ROWS_PER_BLOCK, summed_rows


def row_logsumexp(logits: torch.Tensor, *, threads: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """logits [M, V] -> logsumexp [M], valid [M]."""
    _, logsumexp, valid = summed_rows(logits, np.arange(logits.shape[0]), normalized=False, threads=threads)
    return logsumexp, valid


def subtracted(logits: torch.Tensor, shift: NDArray[np.float64], *, threads: int) -> torch.Tensor:
    """float32(logits - shift[:, None]), a new tensor."""
    source = as_numpy(logits)
    out = np.empty(source.shape, np.float32)

    def work(first: int, last: int) -> None:
        subtract(to_float32(source[first:last]), shift[first:last], out[first:last])

    for_each_block(len(source), ROWS_PER_BLOCK, threads, lambda: work)
    return torch.from_numpy(out)
