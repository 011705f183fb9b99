"""TopK requests: the best continuations over all rows of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from forkdecode_kernels.topk import Continuations, RowGroups, beam_topk, row_topk

from forkdecode.sampling.group_logits import (
    NonFiniteLogitsError,
    group_rows,
    processed_chunks,
    raw_logprobs,
    where,
)
from forkdecode.sampling.top_logprobs import joined
from forkdecode.step import Bools, SelectionRequest, SelectionResult, TopK, TopLogprobs

TopKRequest = tuple[SelectionRequest, TopK]


def topk_plain(
    logits: torch.Tensor, requests: Sequence[TopKRequest], *, threads: int
) -> list[SelectionResult]:
    """Many groups at once, none with active processors or top log-probabilities."""
    results = []
    for (request, choice), best in zip(requests, _best_plain(logits, requests, threads), strict=True):

        def again(k: int, request: SelectionRequest = request, choice: TopK = choice) -> Continuations:
            return _best_plain(logits, [(request, replace(choice, k=k))], threads)[0]

        if not best.valid:
            results.append(SelectionResult.failed(request.group_id, f"non-finite logits {where(request)}"))
            continue
        found = _enlarged(best, request, choice, logits.shape[1], again)
        results.append(
            SelectionResult(
                request.group_id,
                found.rows.astype(np.int32),
                found.tokens,
                found.logprobs,
                found.logprobs,
                found.scores,
            )
        )
    return results


def topk_processed(
    logits: torch.Tensor, request: SelectionRequest, choice: TopK, *, threads: int
) -> SelectionResult:
    """One group, row chunk by row chunk, through its processors, with top log-probabilities if asked."""
    sums: list[np.ndarray] = []
    top: list[TopLogprobs] = []

    def best(k: int) -> Continuations:
        sums.clear()
        top.clear()
        parts = []
        for chunk in processed_chunks(logits, request, normalize=True, threads=threads):
            count = len(chunk.raw)
            base = choice.base[chunk.first : chunk.first + count]
            groups = RowGroups(np.array([0]), np.array([count]), np.array([k]))
            part = beam_topk(chunk.values, groups, base, normalized=True, threads=threads)[0]
            if not part.valid:
                raise NonFiniteLogitsError(f"non-finite processed logits {where(request)}")
            parts.append(replace(part, rows=part.rows + chunk.first))
            sums.append(chunk.logsumexp)
            if request.num_logprobs is not None:
                raw = row_topk(chunk.raw, request.num_logprobs, normalized=False, threads=threads)
                done = row_topk(chunk.values, request.num_logprobs, normalized=True, threads=threads)
                top.append(TopLogprobs(*raw, *done))
        return _merged(parts, k)

    found = _enlarged(best(choice.k), request, choice, logits.shape[1], best)
    raw = raw_logprobs(
        group_rows(logits, request), found.rows, found.tokens, np.concatenate(sums)[found.rows]
    )
    return SelectionResult(
        request.group_id,
        found.rows.astype(np.int32),
        found.tokens,
        raw,
        found.logprobs,
        found.scores,
        joined(top) if top else None,
    )


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
    """Double k until `live` candidates go on or no legal one is left out."""
    if choice.finishing is None and choice.finishing_ids is None:
        return best
    k = choice.k
    while len(best.tokens) >= k and k < request.rows * vocab:
        if int((~finishes(best, choice)).sum()) >= choice.live:
            break
        k *= 2
        best = again(k)
    return best


def finishes(best: Continuations, choice: TopK) -> Bools:
    """[N]: which candidates end their hypothesis by a stop string, or by an id in finishing_ids."""
    done = np.zeros(len(best.tokens), np.bool_)
    if choice.finishing is not None:
        table, state = choice.finishing.table, choice.finishing.state
        known = best.tokens < table.shape[1]
        done[known] = table[state[best.rows[known]], best.tokens[known]]
    if choice.finishing_ids is not None:
        done |= np.isin(best.tokens, choice.finishing_ids)
    return done
