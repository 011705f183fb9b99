"""RowTopK requests: the best continuations of each row of a group by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode.sampling.allowed import may_end, still_open
from forkdecode.sampling.continuations import Best, choose_plain, choose_processed, finishes
from forkdecode.sampling.group_logits import Chunk
from forkdecode.step import RowTopK, SelectionRequest, SelectionResult
from forkdecode_kernels.row_candidates import RowCandidates, row_candidates
from forkdecode_kernels.topk import Continuations

RowTopKRequest = tuple[SelectionRequest, RowTopK]


def rows_plain(
    logits: torch.Tensor, requests: Sequence[RowTopKRequest], *, threads: int
) -> list[SelectionResult]:
    """Groups without active processors or top log-probabilities: straight from the logits."""
    return choose_plain(_OF_EACH_ROW, logits, requests, threads)


def rows_processed(
    logits: torch.Tensor, requests: Sequence[RowTopKRequest], *, threads: int
) -> list[SelectionResult]:
    """Groups with processors, or with top log-probabilities. Raises for the first group at fault."""
    return choose_processed(_OF_EACH_ROW, logits, requests, threads)


def _plain(logits: torch.Tensor, requests: Sequence[RowTopKRequest], threads: int) -> list[Continuations]:
    sizes = [r.rows for r, _ in requests]
    rows = np.concatenate([np.arange(r.rows) + r.logits_start for r, _ in requests])
    k = np.repeat(np.array([c.k for _, c in requests], np.int64), sizes)
    base = np.concatenate([c.base for _, c in requests]).astype(np.float32)
    return split(row_candidates(logits, rows, k, base, threads=threads), np.cumsum([0, *sizes]))


def _of_chunk(chunk: Chunk, choices: Sequence[RowTopK], threads: int) -> list[Continuations]:
    pairs = list(zip(chunk.pieces, choices, strict=True))
    k = np.concatenate([np.full(len(p), c.k, np.int64) for p, c in pairs])
    base = np.concatenate([c.base[p.first : p.last] for p, c in pairs]).astype(np.float32)
    found = row_candidates(chunk.values, np.arange(len(k)), k, base, normalized=True, threads=threads)
    return split(found, chunk.starts)


def split(found: RowCandidates, starts: NDArray[np.int64]) -> list[Continuations]:
    """The candidates of rows starts[i] .. starts[i + 1], for each i; rows count from the first of them."""
    edges = np.searchsorted(found.row, starts)
    return [
        Continuations(
            found.row[a:b] - first,
            found.token[a:b],
            found.score[a:b],
            found.logprob[a:b],
            bool(found.valid[first:last].all()),
            None if found.raw is None else found.raw[a:b],
        )
        for a, b, first, last in zip(edges[:-1], edges[1:], starts[:-1], starts[1:], strict=True)
    ]


def _joined(parts: Sequence[Continuations], choice: RowTopK) -> Continuations:
    """Row after row, as they come."""
    return Continuations(
        np.concatenate([p.rows for p in parts]),
        np.concatenate([p.tokens for p in parts]),
        np.concatenate([p.scores for p in parts]),
        np.concatenate([p.logprobs for p in parts]),
        valid=True,
    )


def enlarged(
    best: Continuations,
    request: SelectionRequest,
    choice: RowTopK,
    vocab: int,
    again: Callable[[int], Continuations],
) -> Continuations:
    """Double k until in each row `live` candidates go on or no legal one is left out, or until all that
    the constraint leaves open are listed."""
    if choice.finishing is None and not may_end(request):
        return best
    k, possible = choice.k, None
    while k < vocab:
        goes_on = ~finishes(best, request, choice)
        live = np.bincount(best.rows[goes_on], minlength=request.rows)
        listed = np.bincount(best.rows, minlength=request.rows)
        if not ((live < choice.live) & (listed >= k)).any():
            break
        # To count takes longer than to see that enough are there.
        if k == choice.k:
            possible = still_open(request, choice.finishing_ids)
        if possible is not None and int(live.sum()) >= possible:
            break
        k *= 2
        best = again(k)
    return best


_OF_EACH_ROW = Best(_plain, _of_chunk, _joined, enlarged)
