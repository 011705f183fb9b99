"""RowTopK requests: the best continuations of each row of a group by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode.sampling.allowed import ended, still_open
from forkdecode.sampling.beams import finishes
from forkdecode.sampling.group_logits import (
    NonFiniteLogitsError,
    group_rows,
    processed_chunks,
    raw_logprobs,
    where,
)
from forkdecode.sampling.top_logprobs import TopCollector
from forkdecode.step import F32, RowTopK, SelectionRequest, SelectionResult, TopLogprobs
from forkdecode_kernels.row_candidates import RowCandidates, row_candidates
from forkdecode_kernels.topk import Continuations

RowTopKRequest = tuple[SelectionRequest, RowTopK]


def rows_plain(
    logits: torch.Tensor, requests: Sequence[RowTopKRequest], *, threads: int
) -> list[SelectionResult]:
    """Groups without active processors or top log-probabilities: straight from the logits."""
    results = []
    for (request, choice), best in zip(requests, _best_plain(logits, requests, threads), strict=True):
        if not best.valid:
            results.append(SelectionResult.failed(request.group_id, f"non-finite logits {where(request)}"))
            continue

        def again(k: int, request: SelectionRequest = request, choice: RowTopK = choice) -> Continuations:
            return _best_plain(logits, [(request, replace(choice, k=k))], threads)[0]

        found = _enlarged(best, request, choice, logits.shape[1], again)
        results.append(_result(request, found, found.logprobs, None))
    return results


def rows_processed(
    logits: torch.Tensor, requests: Sequence[RowTopKRequest], *, threads: int
) -> list[SelectionResult]:
    """Groups with processors, or with top log-probabilities. Raises for the first group at fault."""
    top = TopCollector(threads)
    logsumexp, best = _best_processed(logits, requests, threads, top)
    results = []
    for index, (request, choice) in enumerate(requests):

        def again(k: int, request: SelectionRequest = request, choice: RowTopK = choice) -> Continuations:
            return _best_processed(logits, [(request, replace(choice, k=k))], threads, None)[1][0]

        found = _enlarged(best[index], request, choice, logits.shape[1], again)
        rows = found.rows + request.logits_start
        raw = raw_logprobs(logits, rows, found.tokens, logsumexp[index][found.rows])
        results.append(_result(request, found, raw, top.of(index)))
    return results


def check_rows(logits: torch.Tensor, request: SelectionRequest, choice: RowTopK) -> None:
    """Raises ValueError for a request that contradicts itself."""
    if len(group_rows(logits, request)) != request.rows or request.rows < 1:
        raise ValueError(f"rows {request.logits_start} + {request.rows} reach outside the logits")
    if len(choice.base) != request.rows or choice.k < 1:
        raise ValueError(f"{len(choice.base)} running scores for {request.rows} rows, k {choice.k}")


def _result(
    request: SelectionRequest, found: Continuations, raw: F32, top: TopLogprobs | None
) -> SelectionResult:
    return SelectionResult(
        request.group_id,
        found.rows.astype(np.int32),
        found.tokens,
        raw,
        found.logprobs,
        found.scores,
        top,
        ended=ended(request, found.rows, found.tokens),
    )


def _best_plain(
    logits: torch.Tensor, requests: Sequence[RowTopKRequest], threads: int
) -> list[Continuations]:
    sizes = [r.rows for r, _ in requests]
    rows = np.concatenate([np.arange(r.rows) + r.logits_start for r, _ in requests])
    k = np.repeat(np.array([c.k for _, c in requests], np.int64), sizes)
    base = np.concatenate([c.base for _, c in requests]).astype(np.float32)
    return _split(row_candidates(logits, rows, k, base, threads=threads), np.cumsum([0, *sizes]))


def _best_processed(
    logits: torch.Tensor, requests: Sequence[RowTopKRequest], threads: int, top: TopCollector | None
) -> tuple[list[NDArray[np.float64]], list[Continuations]]:
    """For each group: the raw logsumexp of its rows, and its candidates."""
    parts: list[list[Continuations]] = [[] for _ in requests]
    sums: list[list[NDArray[np.float64]]] = [[] for _ in requests]
    asked = [r for r, _ in requests]
    for chunk in processed_chunks(logits, asked, log_softmax=True, threads=threads):
        choices = [requests[p.index][1] for p in chunk.pieces]
        pairs = list(zip(chunk.pieces, choices, strict=True))
        k = np.concatenate([np.full(len(p), c.k, np.int64) for p, c in pairs])
        base = np.concatenate([c.base[p.first : p.last] for p, c in pairs]).astype(np.float32)
        places = np.arange(len(k))
        found = row_candidates(chunk.values, places, k, base, normalized=True, threads=threads)
        for piece, part, start in zip(chunk.pieces, _split(found, chunk.starts), chunk.starts, strict=False):
            if not part.valid:
                raise NonFiniteLogitsError(f"non-finite processed logits {where(piece.request)}")
            parts[piece.index].append(replace(part, rows=part.rows + piece.first))
            sums[piece.index].append(chunk.logsumexp[start : start + len(piece)])
        if top is not None:
            top.add(logits, chunk, chunk.values)
    return [np.concatenate(s) for s in sums], [_joined(p) for p in parts]


def _split(found: RowCandidates, starts: NDArray[np.int64]) -> list[Continuations]:
    """The candidates of rows starts[i] .. starts[i + 1], for each i; rows count from the first of them."""
    edges = np.searchsorted(found.row, starts)
    return [
        Continuations(
            found.row[a:b] - first,
            found.token[a:b],
            found.score[a:b],
            found.logprob[a:b],
            bool(found.valid[first:last].all()),
        )
        for a, b, first, last in zip(edges[:-1], edges[1:], starts[:-1], starts[1:], strict=True)
    ]


def _joined(parts: Sequence[Continuations]) -> Continuations:
    if len(parts) == 1:
        return parts[0]
    return Continuations(
        np.concatenate([p.rows for p in parts]),
        np.concatenate([p.tokens for p in parts]),
        np.concatenate([p.scores for p in parts]),
        np.concatenate([p.logprobs for p in parts]),
        valid=True,
    )


def _enlarged(
    best: Continuations,
    request: SelectionRequest,
    choice: RowTopK,
    vocab: int,
    again: Callable[[int], Continuations],
) -> Continuations:
    """Double k until in each row `live` candidates go on or no legal one is left out, or until all that
    the constraint leaves open are listed."""
    possible = still_open(request, choice.finishing_ids)
    if choice.finishing is None and possible is None:
        return best
    k = choice.k
    while k < vocab:
        goes_on = ~finishes(best, request, choice)
        live = np.bincount(best.rows[goes_on], minlength=request.rows)
        listed = np.bincount(best.rows, minlength=request.rows)
        if possible is not None and int(live.sum()) >= possible:
            break
        if not ((live < choice.live) & (listed >= k)).any():
            break
        k *= 2
        best = again(k)
    return best
