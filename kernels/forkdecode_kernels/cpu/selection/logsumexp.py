"""float32 copies of rows, as they are or log-softmaxed, with their logsumexp."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.parallel import for_each_block
from forkdecode_kernels.cpu.selection.rows import TILE, as_numpy, row_sums, subtract, to_float32
from forkdecode_kernels.cpu.selection.topk import ROWS_PER_BLOCK


def float_rows(
    logits: torch.Tensor, rows: NDArray[np.int64], *, log_softmax: bool, threads: int
) -> tuple[torch.Tensor, NDArray[np.float64], NDArray[np.bool_]]:
    """See forkdecode_kernels.logsumexp."""
    source = as_numpy(logits)
    vocab = source.shape[1]
    values = np.empty((len(rows), vocab), np.float32)
    logsumexp = np.empty(len(rows), np.float64)
    valid = np.empty(len(rows), np.bool_)

    def work(first: int, last: int) -> None:
        block, sums = values[first:last], logsumexp[first:last]
        if source.dtype == np.float32:
            np.take(source, rows[first:last], axis=0, out=block, mode="clip")
        else:
            to_float32(source[rows[first:last]], block)
        tiles = np.empty((len(block), -(-vocab // TILE)), np.int32)
        row_sums(block, np.arange(len(block)), tiles, sums, valid[first:last], False)
        if log_softmax:
            subtract(block, np.where(np.isfinite(sums), sums, 0.0))

    for_each_block(len(rows), ROWS_PER_BLOCK, threads, lambda: work)
    return torch.from_numpy(values), logsumexp, valid
