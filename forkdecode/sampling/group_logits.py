"""The logits of groups whose processors change something: copied, in bounded chunks, and processed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode.errors import ForkdecodeError
from forkdecode.sampling.allowed import apply_allowed, is_masked
from forkdecode.sampling.processors import RowHistory, apply_processors
from forkdecode.step import SelectionRequest, SelectionResult
from forkdecode_kernels.logsumexp import float_rows, picked_logits

CHUNK_BYTES = 16 << 20
"""Bound on the float32 copies made at once."""


class NonFiniteLogitsError(ValueError):
    """NaN or +inf among a group's logits."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows first .. last of group `index` of the batch."""

    index: int
    request: SelectionRequest
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some pieces' rows, one after the other: m together.

    rows [m]: places in the logits. values [m, V] float32 after processors. logsumexp [m] of the
    raw logits. starts [pieces + 1]: where each piece begins.
    """

    pieces: tuple[Piece, ...]
    starts: NDArray[np.int64]
    rows: NDArray[np.int64]
    values: torch.Tensor
    logsumexp: NDArray[np.float64]


def group_rows(logits: torch.Tensor, request: SelectionRequest) -> torch.Tensor:
    """The group's rows [R, V], a view."""
    return logits[request.logits_start : request.logits_start + request.rows]


def is_active(request: SelectionRequest) -> bool:
    """Whether this step's logits change before anything is chosen."""
    return is_masked(request) or request.processors.active(request.num_generated)


def where(request: SelectionRequest) -> str:
    """For error texts: which of the group's tokens is being chosen."""
    return f"at generated token {request.num_generated + 1}"


def failed(request: SelectionRequest, error: Exception) -> SelectionResult:
    """Of a group that something went wrong with."""
    field = error.field if isinstance(error, ForkdecodeError) else None
    return SelectionResult.failed(request.group_id, str(error) or type(error).__name__, field)


def processed_chunks(
    logits: torch.Tensor, requests: Sequence[SelectionRequest], *, log_softmax: bool, threads: int
) -> Iterator[Chunk]:
    """All rows of the groups, in order, after processors: logits, or log-probabilities for beams.

    Raises NonFiniteLogitsError, or what a processor raises, for the first group at fault.
    """
    limit = max(1, CHUNK_BYTES // (4 * logits.shape[1]))
    for pieces in _packed(requests, limit):
        places = [np.arange(p.first, p.last) + p.request.logits_start for p in pieces]
        rows = np.concatenate(places).astype(np.int64)
        copied = float_rows(logits, rows, log_softmax=log_softmax, threads=threads)
        starts = np.cumsum([0, *map(len, pieces)])
        for piece, start in zip(pieces, starts, strict=False):
            own = slice(start, start + len(piece))
            if not copied.valid[own].all():
                raise NonFiniteLogitsError(f"non-finite logits {where(piece.request)}")
            _process(copied.values[own], piece, threads)
        yield Chunk(tuple(pieces), starts, rows, copied.values, copied.logsumexp)


def _packed(requests: Sequence[SelectionRequest], limit: int) -> Iterator[list[Piece]]:
    """Pieces in the order of the groups' rows, `limit` rows at a time; big groups are cut."""
    pieces: list[Piece] = []
    room = limit
    for index, request in enumerate(requests):
        first = 0
        while first < request.rows:
            last = min(request.rows, first + room)
            pieces.append(Piece(index, request, first, last))
            room -= last - first
            first = last
            if room == 0:
                yield pieces
                pieces, room = [], limit
    if pieces:
        yield pieces


def _process(values: torch.Tensor, piece: Piece, threads: int) -> None:
    request = piece.request
    if not is_active(request):
        return
    history = None
    if request.generated is not None:
        if request.generated.shape != (request.rows, request.num_generated):
            expected = (request.rows, request.num_generated)
            raise ValueError(f"generated is {request.generated.shape}, not {expected}")
        history = RowHistory.of(request.prompt, request.generated[piece.first : piece.last], values.device)
    apply_processors(values, request.processors, history, request.num_generated)
    apply_allowed(values, request, piece.first, piece.last, threads=threads)


def raw_logprobs(
    logits: torch.Tensor, rows: NDArray[np.int64], tokens: NDArray[np.int64], logsumexp: NDArray[np.float64]
) -> NDArray[np.float32]:
    """log_softmax(logits)[rows, tokens] float32, given the logsumexp of each of `rows`."""
    chosen = picked_logits(logits, rows, tokens)
    with np.errstate(invalid="ignore"):  # rows of nothing but -inf, which fail by their status
        return np.asarray(chosen - logsumexp, np.float32)
