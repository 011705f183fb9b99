"""What TopK and RowTopK requests have in common: candidates straight from the logits or after processors,
more of them where too many end, and what is told of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode.sampling.allowed import ended
from forkdecode.sampling.group_logits import (
    Chunk,
    NonFiniteLogitsError,
    group_rows,
    is_active,
    processed_chunks,
    raw_logprobs,
    where,
)
from forkdecode.sampling.top_logprobs import TopCollector, in_turn, top_unchanged
from forkdecode.step import F32, Bools, RowTopK, SelectionRequest, SelectionResult, TopK, TopLogprobs
from forkdecode_kernels.topk import Continuations

C = TypeVar("C", TopK, RowTopK)


@dataclass(frozen=True, slots=True)
class Best(Generic[C]):
    """How one of the two finds its candidates.

    plain: each group's, from the logits, by (logits, requests, threads). of_chunk: those of each piece of a
    chunk, by (chunk, the choices of its pieces, threads). joined: those of a group's pieces as one.
    enlarged: more of them where too many end, by (candidates, request, choice, vocabulary, what finds k).
    """

    plain: Callable[[torch.Tensor, Sequence[tuple[SelectionRequest, C]], int], list[Continuations]]
    of_chunk: Callable[[Chunk, Sequence[C], int], list[Continuations]]
    joined: Callable[[Sequence[Continuations], C], Continuations]
    enlarged: Callable[
        [Continuations, SelectionRequest, C, int, Callable[[int], Continuations]], Continuations
    ]


def check_scores(logits: torch.Tensor, request: SelectionRequest, choice: TopK | RowTopK) -> None:
    """Raises ValueError for a request that contradicts itself."""
    if len(group_rows(logits, request)) != request.rows or request.rows < 1:
        raise ValueError(f"rows {request.logits_start} + {request.rows} reach outside the logits")
    if len(choice.base) != request.rows or choice.k < 1:
        raise ValueError(f"{len(choice.base)} running scores for {request.rows} rows, k {choice.k}")


def choose_plain(
    best: Best[C], logits: torch.Tensor, requests: Sequence[tuple[SelectionRequest, C]], threads: int
) -> list[SelectionResult]:
    """Groups whose logits nothing changes: straight from them."""
    results = []
    for (request, choice), first in zip(requests, best.plain(logits, requests, threads), strict=True):
        if not first.valid:
            results.append(SelectionResult.failed(request.group_id, f"non-finite logits {where(request)}"))
            continue
        again = partial(_plain_again, best, logits, request, choice, threads)
        found = best.enlarged(first, request, choice, logits.shape[1], again)
        results.append(result_of(request, found, found.logprobs, top_unchanged(logits, request, threads)))
    return results


def choose_processed(
    best: Best[C], logits: torch.Tensor, requests: Sequence[tuple[SelectionRequest, C]], threads: int
) -> list[SelectionResult]:
    """Groups with processors, or with top log-probabilities. Raises for the first group at fault."""
    return in_turn(
        [is_active(request) for request, _ in requests],
        requests,
        lambda told: choose_plain(best, logits, told, threads),
        lambda changed: choose_changed(best, logits, changed, threads),
    )


def choose_changed(
    best: Best[C], logits: torch.Tensor, requests: Sequence[tuple[SelectionRequest, C]], threads: int
) -> list[SelectionResult]:
    """Groups whose logits processors may change. Raises for the first group at fault."""
    top = TopCollector(threads)
    logsumexp, firsts = _processed(best, logits, requests, threads, top)
    results = []
    for index, (request, choice) in enumerate(requests):
        again = partial(_processed_again, best, logits, request, choice, threads)
        found = best.enlarged(firsts[index], request, choice, logits.shape[1], again)
        rows = found.rows + request.logits_start
        raw = raw_logprobs(logits, rows, found.tokens, logsumexp[index][found.rows])
        results.append(result_of(request, found, raw, top.of(index)))
    return results


def _plain_again(
    best: Best[C], logits: torch.Tensor, request: SelectionRequest, choice: C, threads: int, k: int
) -> Continuations:
    return best.plain(logits, [(request, replace(choice, k=k))], threads)[0]


def _processed_again(
    best: Best[C], logits: torch.Tensor, request: SelectionRequest, choice: C, threads: int, k: int
) -> Continuations:
    return _processed(best, logits, [(request, replace(choice, k=k))], threads, None)[1][0]


def _processed(
    best: Best[C],
    logits: torch.Tensor,
    requests: Sequence[tuple[SelectionRequest, C]],
    threads: int,
    top: TopCollector | None,
) -> tuple[list[NDArray[np.float64]], list[Continuations]]:
    """For each group: the raw logsumexp of its rows, and its candidates."""
    parts: list[list[Continuations]] = [[] for _ in requests]
    sums: list[list[NDArray[np.float64]]] = [[] for _ in requests]
    asked = [request for request, _ in requests]
    for chunk in processed_chunks(logits, asked, log_softmax=True, threads=threads):
        found = best.of_chunk(chunk, [requests[p.index][1] for p in chunk.pieces], threads)
        for piece, part, start in zip(chunk.pieces, found, chunk.starts, strict=False):
            if not part.valid:
                raise NonFiniteLogitsError(f"non-finite processed logits {where(piece.request)}")
            parts[piece.index].append(replace(part, rows=part.rows + piece.first))
            sums[piece.index].append(chunk.logsumexp[start : start + len(piece)])
        if top is not None:
            top.add(logits, chunk, chunk.values)
    whole = [
        each[0] if len(each) == 1 else best.joined(each, choice)
        for each, (_, choice) in zip(parts, requests, strict=True)
    ]
    return [np.concatenate(s) for s in sums], whole


def result_of(
    request: SelectionRequest, found: Continuations, raw: F32, top: TopLogprobs | None
) -> SelectionResult:
    """What was chosen. raw [N]: log-probabilities before processors."""
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


def finishes(found: Continuations, request: SelectionRequest, choice: TopK | RowTopK) -> Bools:
    """[N]: which candidates end their hypothesis by a stop string, by an id in finishing_ids, or because
    the constraint is complete."""
    by_constraint = ended(request, found.rows, found.tokens)
    done = np.zeros(len(found.tokens), np.bool_) if by_constraint is None else by_constraint
    if choice.finishing is not None:
        table, state = choice.finishing.table, choice.finishing.state
        known = found.tokens < table.shape[1]
        done[known] = table[state[found.rows[known]], found.tokens[known]]
    if choice.finishing_ids is not None:
        done |= np.isin(found.tokens, choice.finishing_ids)
    return done
