"""TopK requests: the best continuations over all rows of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from forkdecode.sampling.allowed import listed, may_end, still_open
from forkdecode.sampling.continuations import Best, choose_plain, choose_processed, finishes, result_of
from forkdecode.sampling.group_logits import Chunk, group_rows, where
from forkdecode.step import F32, SelectionRequest, SelectionResult, TopK
from forkdecode_kernels.allowed import TokenLists
from forkdecode_kernels.listed_topk import listed_topk
from forkdecode_kernels.topk import Continuations, RowGroups, beam_topk

TopKRequest = tuple[SelectionRequest, TopK]


def topk_plain(
    logits: torch.Tensor, requests: Sequence[TopKRequest], *, threads: int
) -> list[SelectionResult]:
    """Groups without active processors or top log-probabilities: straight from the logits."""
    return choose_plain(_OVER_ALL_ROWS, logits, requests, threads)


def topk_processed(
    logits: torch.Tensor, requests: Sequence[TopKRequest], *, threads: int
) -> list[SelectionResult]:
    """Groups with processors, or with top log-probabilities. Raises for the first group at fault."""
    return choose_processed(_OVER_ALL_ROWS, logits, requests, threads)


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
        found = enlarged(best, request, choice, logits.shape[1], best_of)
        results.append(result_of(request, found, found.logprobs, None))
    return results


def _best_listed(logits: torch.Tensor, lists: TokenLists, base: F32, threads: int, k: int) -> Continuations:
    return listed_topk(logits, lists, base, k, threads=threads).best


def _plain(logits: torch.Tensor, requests: Sequence[TopKRequest], threads: int) -> list[Continuations]:
    groups = RowGroups(
        np.array([r.logits_start for r, _ in requests], np.int64),
        np.array([r.rows for r, _ in requests], np.int64),
        np.array([c.k for _, c in requests], np.int64),
    )
    base = np.concatenate([c.base for _, c in requests]).astype(np.float32)
    return beam_topk(logits, groups, base, threads=threads)


def _of_chunk(chunk: Chunk, choices: Sequence[TopK], threads: int) -> list[Continuations]:
    groups = RowGroups(chunk.starts[:-1], np.diff(chunk.starts), np.array([c.k for c in choices], np.int64))
    bases = [c.base[p.first : p.last] for p, c in zip(chunk.pieces, choices, strict=True)]
    base = np.concatenate(bases).astype(np.float32)
    return beam_topk(chunk.values, groups, base, normalized=True, threads=threads)


def _merged(parts: Sequence[Continuations], choice: TopK) -> Continuations:
    scores = np.concatenate([p.scores for p in parts])
    # Parts are in row order and sorted themselves, so a stable sort leaves ties by row, then token.
    order = np.argsort(-scores, kind="stable")[: choice.k]
    rows = np.concatenate([p.rows for p in parts])[order]
    tokens = np.concatenate([p.tokens for p in parts])[order]
    logprobs = np.concatenate([p.logprobs for p in parts])[order]
    return Continuations(rows, tokens, scores[order], logprobs, True)


def enlarged(
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


_OVER_ALL_ROWS = Best(_plain, _of_chunk, _merged, enlarged)
