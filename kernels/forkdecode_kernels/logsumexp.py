"""log sum exp over the vocabulary of each row, and float32 copies of rows as they are or log-softmaxed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection import logsumexp as cpu
from forkdecode_kernels.reference import logsumexp as reference


@dataclass(frozen=True, slots=True)
class FloatRows:
    """values [m, V] float32, a copy; logsumexp [m] float64 of the rows as they came, NaN where not valid.

    valid [m]: the row has neither NaN nor +inf. A row of nothing but -inf is valid, sums to -inf,
    and stays as it is.
    """

    values: torch.Tensor
    logsumexp: NDArray[np.float64]
    valid: NDArray[np.bool_]


def float_rows(
    logits: torch.Tensor, rows: NDArray[np.int64], *, log_softmax: bool, threads: int = 1
) -> FloatRows:
    """logits [M, V], any float type; rows [m] -> their logits, or with `log_softmax` log-probabilities.

    A log-probability is float32(logit - logsumexp), subtracted in float64.
    """
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits must be [M, V], not {tuple(logits.shape)}")
    if len(rows) and (rows.min() < 0 or rows.max() >= len(logits)):
        raise ValueError(f"rows must be in 0 .. {len(logits) - 1}")
    if logits.device.type == "cpu":
        return FloatRows(*cpu.float_rows(logits, rows, log_softmax=log_softmax, threads=threads))
    picked = logits[torch.from_numpy(rows).to(logits.device)]
    lse, valid = reference.row_logsumexp(picked)
    values = reference.log_softmax(picked, lse) if log_softmax else picked.float()
    return FloatRows(values, lse.cpu().numpy(), valid.cpu().numpy())
