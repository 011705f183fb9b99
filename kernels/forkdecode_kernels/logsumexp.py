"""log sum exp over the vocabulary of each row, and log-softmax from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection import logsumexp as cpu
from forkdecode_kernels.reference import logsumexp as reference


@dataclass(frozen=True, slots=True)
class RowSums:
    """logsumexp [M] float64 (NaN where not valid); valid [M]: the row has neither NaN nor +inf."""

    logsumexp: NDArray[np.float64]
    valid: NDArray[np.bool_]

    @property
    def shift(self) -> NDArray[np.float64]:
        """What log-softmax subtracts: logsumexp, but 0 for a row of nothing but -inf, which stays that."""
        return np.where(np.isneginf(self.logsumexp), 0.0, self.logsumexp)


def row_logsumexp(logits: torch.Tensor, *, threads: int = 1) -> RowSums:
    """logits [M, V], any float type -> RowSums. -inf entries are legal; a row of them sums to -inf."""
    _check(logits)
    if logits.device.type == "cpu":
        return RowSums(*cpu.row_logsumexp(logits, threads=threads))
    lse, valid = reference.row_logsumexp(logits)
    return RowSums(lse.cpu().numpy(), valid.cpu().numpy())


def subtracted(logits: torch.Tensor, shift: NDArray[np.float64], *, threads: int = 1) -> torch.Tensor:
    """float32(logits - shift[:, None]) [M, V], a new tensor: log-softmax when shift is `RowSums.shift`."""
    _check(logits)
    if shift.shape != (len(logits),) or shift.dtype != np.float64:
        raise ValueError(f"shift must be float64 [{len(logits)}], not {shift.dtype} {shift.shape}")
    if logits.device.type == "cpu":
        return cpu.subtracted(logits, shift, threads=threads)
    return reference.subtracted(logits, torch.from_numpy(shift).to(logits.device))


def _check(logits: torch.Tensor) -> None:
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits must be [M, V], not {tuple(logits.shape)}")
