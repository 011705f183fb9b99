"""log sum exp over the vocabulary of each row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.reference import logsumexp as reference


@dataclass(frozen=True, slots=True)
class RowSums:
    """logsumexp [M] float64; valid [M]: the row has neither NaN nor +inf."""

    logsumexp: NDArray[np.float64]
    valid: NDArray[np.bool_]


def row_logsumexp(logits: torch.Tensor, *, threads: int = 1) -> RowSums:
    """logits [M, V], any float type -> RowSums. -inf entries are legal; a row of them sums to -inf."""
    if logits.dim() != 2:
        raise ValueError(f"logits must be [M, V], not {tuple(logits.shape)}")
    lse, valid = reference.row_logsumexp(logits)
    return RowSums(lse.cpu().numpy(), valid.cpu().numpy())
