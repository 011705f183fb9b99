"""One group's logits: read in bounded row chunks, as they are and after its processors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from forkdecode_kernels.logsumexp import row_logsumexp, subtracted
from numpy.typing import NDArray

from forkdecode.sampling.processors import RowHistory, apply_processors
from forkdecode.step import SelectionRequest

CHUNK_BYTES = 32 << 20
"""Bound on the float32 copies made at once."""


class NonFiniteLogitsError(ValueError):
    """NaN or +inf among a group's logits."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows first .. first + n of a group: float32 values after processors, and the raw rows' sums.

    values is a copy, or the logits themselves when no processor is active and they are float32.
    """

    first: int
    raw: torch.Tensor
    values: torch.Tensor
    logsumexp: NDArray[np.float64]


def group_rows(logits: torch.Tensor, request: SelectionRequest) -> torch.Tensor:
    """The group's rows [R, V], a view."""
    return logits[request.logits_start : request.logits_start + request.rows]


def is_active(request: SelectionRequest) -> bool:
    """Whether this step's logits change before anything is chosen."""
    return request.processors.active(request.num_generated)


def where(request: SelectionRequest) -> str:
    """For error texts: which of the group's tokens is being chosen."""
    return f"at generated token {request.num_generated + 1}"


def processed_chunks(
    logits: torch.Tensor, request: SelectionRequest, *, normalize: bool, threads: int
) -> Iterator[Chunk]:
    """The group's rows after processors: logits, or log-probabilities when `normalize` (beams).

    Raises NonFiniteLogitsError.
    """
    rows = group_rows(logits, request)
    step = max(1, CHUNK_BYTES // (4 * rows.shape[1]))
    for first in range(0, len(rows), step):
        raw = rows[first : first + step]
        sums = row_logsumexp(raw, threads=threads)
        if not sums.valid.all():
            raise NonFiniteLogitsError(f"non-finite logits {where(request)}")
        if normalize:
            values = subtracted(raw, sums.shift, threads=threads)
        elif is_active(request) and raw.dtype == torch.float32:
            values = raw.clone()
        else:
            values = raw.float()
        if is_active(request):
            history = _history(request, first, first + len(raw), values.device)
            apply_processors(values, request.processors, history, request.num_generated)
        yield Chunk(first, raw, values, sums.logsumexp)


def _history(request: SelectionRequest, first: int, last: int, device: torch.device) -> RowHistory | None:
    if request.generated is None:
        return None
    if request.generated.shape != (request.rows, request.num_generated):
        raise ValueError(
            f"generated is {request.generated.shape}, not {(request.rows, request.num_generated)}"
        )
    return RowHistory.of(request.prompt, request.generated[first:last], device)


def raw_logprobs(
    logits: torch.Tensor, rows: NDArray[np.int64], tokens: NDArray[np.int64], logsumexp: NDArray[np.float64]
) -> NDArray[np.float32]:
    """log_softmax(logits)[rows, tokens] float32, given the logsumexp of each of `rows`."""
    at = (torch.from_numpy(rows).to(logits.device), torch.from_numpy(tokens).to(logits.device))
    chosen: NDArray[np.float64] = logits[at].double().cpu().numpy()
    with np.errstate(invalid="ignore"):  # rows of nothing but -inf, which fail by their status
        return np.asarray(chosen - logsumexp, np.float32)
