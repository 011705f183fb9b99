"""TopK requests: the best continuations over all rows of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode.sampling.allowed import ended, listed, may_end, still_open
from forkdecode.sampling.group_logits import (
    NonFiniteLogitsError,
    group_rows,
    processed_chunks,
    raw_logprobs,
    where,
)
from forkdecode.sampling.top_logprobs import TopCollector
from forkdecode.step import F32, Bools, RowTopK, SelectionRequest, SelectionResult, TopK, TopLogprobs
from forkdecode_kernels.allowed import TokenLists
from forkdecode_kernels.listed_topk import listed_topk
from forkdecode_kernels.topk import Continuations, RowGroups, beam_topk

TopKRequest = tuple[SelectionRequest, TopK]


def topk_plain(
    logits: torch.Tensor, requests: Sequence[TopKRequest], *, threads: int
) -> list[SelectionResult]:
    """Groups without active processors or top log-probabilities: straight from the logits."""
    results = []
    for (request, choice), best in zip(requests, _best_plain(logits, requests, threads), strict=True):
        if not best.valid:
            results.append(SelectionResult.failed(request.group_id, f"non-finite logits {where(request)}"))
            continue

        def again(k: int, request: SelectionRequest = request, choice: TopK = choice) -> Continuations:
            return _best_plain(logits, [(request, replace(choice, k=k))], threads)[0]

        found = _enlarged(best, request, choice, logits.shape[1], again)
        results.append(_result(request, found, found.logprobs, None))
    return results


def topk_processed(
    logits: torch.Tensor, requests: Sequence[TopKRequest], *, threads: int
) -> list[SelectionResult]:
    """Groups with processors, or with top log-probabilities. Raises for the first group at fault."""
    top = TopCollector(threads)
    logsumexp, best = _best_processed(logits, requests, threads, top)
    results = []
    for index, (request, choice) in enumerate(requests):

        def again(k: int, request: SelectionRequest = request, choice: TopK = choice) -> Continuations:
            return _best_processed(logits, [(request, replace(choice, k=k))], threads, None)[1][0]

        found = _enlarged(best[index], request, choice, logits.shape[1], again)
        rows = found.rows + request.logits_start
        raw = raw_logprobs(logits, rows, found.tokens, logsumexp[index][found.rows])
        results.append(_result(request, found, raw, top.of(index)))
    return results


def topk_listed(
    logits: torch.Tensor, requests: Sequence[TopKRequest], *, threads: int
) -> list[SelectionResult]:
    """Groups of which nothing is known but lists of allowed tokens: their logits are read for their sum, and
    of the rest the lists alone. What comes out is topk_processed's, bit for bit."""
    results = []
    for request, choice in requests:
        base = choice.base.astype(np.float32)
        best_of = partial(_best_listed, group_rows(logits, request), listed(request), base, threads)
        best = best_of(choice.k)
        if not best.valid:
            results.append(SelectionResult.failed(request.group_id, f"non-finite logits {where(request)}"))
            continue
        found = _enlarged(best, request, choice, logits.shape[1], best_of)
        results.append(_result(request, found, found.logprobs, None))
    return results


def _best_listed(logits: torch.Tensor, lists: TokenLists, base: F32, threads: int, k: int) -> Continuations:
    return listed_topk(logits, lists, base, k, threads=threads).best


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


def _best_processed(
    logits: torch.Tensor, requests: Sequence[TopKRequest], threads: int, top: TopCollector | None
) -> tuple[list[NDArray[np.float64]], list[Continuations]]:
    """For each group: the raw logsumexp of its rows, and its k best."""
    parts: list[list[Continuations]] = [[] for _ in requests]
    sums: list[list[NDArray[np.float64]]] = [[] for _ in requests]
    asked = [r for r, _ in requests]
    for chunk in processed_chunks(logits, asked, log_softmax=True, threads=threads):
        choices = [requests[p.index][1] for p in chunk.pieces]
        groups = RowGroups(
            chunk.starts[:-1], np.diff(chunk.starts), np.array([c.k for c in choices], np.int64)
        )
        base = np.concatenate([c.base[p.first : p.last] for p, c in zip(chunk.pieces, choices, strict=True)])
        found = beam_topk(chunk.values, groups, base.astype(np.float32), normalized=True, threads=threads)
        for piece, part, start in zip(chunk.pieces, found, chunk.starts, strict=False):
            if not part.valid:
                raise NonFiniteLogitsError(f"non-finite processed logits {where(piece.request)}")
            parts[piece.index].append(replace(part, rows=part.rows + piece.first))
            sums[piece.index].append(chunk.logsumexp[start : start + len(piece)])
        if top is not None:
            top.add(logits, chunk, chunk.values)
    best = [_merged(p, c.k) for p, (_, c) in zip(parts, requests, strict=True)]
    return [np.concatenate(s) for s in sums], best


def check_topk(logits: torch.Tensor, request: SelectionRequest, choice: TopK) -> None:
    """Raises ValueError for a request that contradicts itself."""
    if len(group_rows(logits, request)) != request.rows or request.rows < 1:
        raise ValueError(f"rows {request.logits_start} + {request.rows} reach outside the logits")
    if len(choice.base) != request.rows or choice.k < 1:
        raise ValueError(f"{len(choice.base)} running scores for {request.rows} rows, k {choice.k}")


def _best_plain(logits: torch.Tensor, requests: Sequence[TopKRequest], threads: int) -> list[Continuations]:
    groups = RowGroups(
        np.array([r.logits_start for r, _ in requests], np.int64),
        np.array([r.rows for r, _ in requests], np.int64),
        np.array([c.k for _, c in requests], np.int64),
    )
    base = np.concatenate([c.base for _, c in requests]).astype(np.float32)
    return beam_topk(logits, groups, base, threads=threads)


def _merged(parts: Sequence[Continuations], k: int) -> Continuations:
    if len(parts) == 1:
        return parts[0]
    scores = np.concatenate([p.scores for p in parts])
    # Parts are in row order and sorted themselves, so a stable sort leaves ties by row, then token.
    order = np.argsort(-scores, kind="stable")[:k]
    rows = np.concatenate([p.rows for p in parts])[order]
    tokens = np.concatenate([p.tokens for p in parts])[order]
    logprobs = np.concatenate([p.logprobs for p in parts])[order]
    return Continuations(rows, tokens, scores[order], logprobs, True)


def _enlarged(
    best: Continuations,
    request: SelectionRequest,
    choice: TopK,
    vocab: int,
    again: Callable[[int], Continuations],
) -> Continuations:
    """Double k until `live` candidates go on, or as many as the constraint leaves, or no legal one is left
    out."""
    if choice.finishing is None and choice.finishing_ids is None and not may_end(request):
        return best
    k, wanted = choice.k, choice.live
    while len(best.tokens) >= k and k < request.rows * vocab:
        live = int((~finishes(best, request, choice)).sum())
        if live >= wanted:
            break
        # To count takes longer than to see that enough are there.
        possible = still_open(request, choice.finishing_ids) if k == choice.k else None
        if possible is not None:
            wanted = min(wanted, possible)
            if live >= wanted:
                break
        k *= 2
        best = again(k)
    return best


def finishes(best: Continuations, request: SelectionRequest, choice: TopK | RowTopK) -> Bools:
    """[N]: which candidates end their hypothesis by a stop string, by an id in finishing_ids, or because
    the constraint is complete."""
    by_constraint = ended(request, best.rows, best.tokens)
    done = np.zeros(len(best.tokens), np.bool_) if by_constraint is None else by_constraint
    if choice.finishing is not None:
        table, state = choice.finishing.table, choice.finishing.state
        known = best.tokens < table.shape[1]
        done[known] = table[state[best.rows[known]], best.tokens[known]]
    if choice.finishing_ids is not None:
        done |= np.isin(best.tokens, choice.finishing_ids)
    return done
