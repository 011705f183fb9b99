"""log sum exp over the vocabulary of each row, and float32 copies of rows as they are or log-softmaxed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection import logsumexp as cpu
from forkdecode_kernels.reference import logsumexp as reference
from forkdecode_kernels.transfer import to_device, to_host


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
    if logits.device.type == "cuda":
        return gpu_rows(logits, rows, log_softmax=log_softmax)
    return device_rows(logits, rows, log_softmax=log_softmax)


def gpu_rows(logits: torch.Tensor, rows: NDArray[np.int64], *, log_softmax: bool) -> FloatRows:
    """`float_rows` by the Triton kernels; one copy to the device and one back."""
    from forkdecode_kernels.triton import float_rows as fast

    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    (index,) = to_device([rows], logits.device)
    sums = fast.row_logsumexp(logits, index)
    values = torch.empty(len(rows), logits.shape[1], dtype=torch.float32, device=logits.device)
    fast.float_rows(logits, index, sums, values, log_softmax=log_softmax)
    (lse,) = to_host([sums])
    return FloatRows(values, lse, ~np.isnan(lse))


def device_rows(logits: torch.Tensor, rows: NDArray[np.int64], *, log_softmax: bool) -> FloatRows:
    """`float_rows` by torch's own operations, on any device; one copy to it and one back."""
    (index,) = to_device([rows], logits.device)
    picked = logits[index]
    lse, valid = reference.row_logsumexp(picked)
    values = reference.log_softmax(picked, lse) if log_softmax else picked.float()
    return FloatRows(values, *to_host([lse, valid]))


def picked_logits(
    logits: torch.Tensor, rows: NDArray[np.int64], tokens: NDArray[np.int64]
) -> NDArray[np.float64]:
    """logits[rows, tokens] on the host."""
    if logits.device.type == "cpu":
        return np.asarray(logits[torch.from_numpy(rows), torch.from_numpy(tokens)].double().numpy())
    return device_picked(logits, rows, tokens)


def device_picked(
    logits: torch.Tensor, rows: NDArray[np.int64], tokens: NDArray[np.int64]
) -> NDArray[np.float64]:
    """`picked_logits` on any device; one copy to it and one back."""
    row, token = to_device([rows, tokens], logits.device)
    (found,) = to_host([logits[row, token].double()])
    return found
