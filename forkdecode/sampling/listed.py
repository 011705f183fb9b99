"""Groups of which nothing changes the logits but short lists of allowed tokens: draws, the best of each row,
and perturbed ones. What comes out is what masking would leave, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from forkdecode.sampling.allowed import listed
from forkdecode.sampling.continuations import result_of
from forkdecode.sampling.group_logits import group_rows, where
from forkdecode.sampling.perturbed import GumbelRequest, group_best, result_of_best
from forkdecode.sampling.row_best import RowTopKRequest, enlarged
from forkdecode.sampling.sampler import Children, Drawn, DrawRequest, draw_rows, results_of
from forkdecode.sampling.top_logprobs import TopCollector
from forkdecode.step import SelectionResult
from forkdecode_kernels.listed import listed_draw, listed_perturbed, listed_row_candidates
from forkdecode_kernels.perturbed import PerturbedRows
from forkdecode_kernels.topk import Continuations


def draw_listed(
    logits: torch.Tensor, requests: Sequence[DrawRequest], *, threads: int
) -> list[SelectionResult]:
    """As sampler.draw_processed."""
    results = []
    for request, choice in requests:
        children = Children.of([(request, choice)])
        setup = draw_rows(np.arange(request.rows), children.count, [choice], [request.rows])
        rows = group_rows(logits, request)
        drawn = listed_draw(rows, listed(request), setup, children.uniform, threads=threads)
        told = Drawn(drawn.tokens, drawn.raw, drawn.logprobs, drawn.status)
        results += results_of([(request, choice)], children, told, None)
    return results


def rows_listed(
    logits: torch.Tensor, requests: Sequence[RowTopKRequest], *, threads: int
) -> list[SelectionResult]:
    """As row_best.rows_processed."""
    results = []
    for request, choice in requests:
        base = choice.base.astype(np.float32)
        best_of: Callable[[int], Continuations] = partial(
            listed_row_candidates, group_rows(logits, request), listed(request), base, threads=threads
        )
        best = best_of(choice.k)
        if not best.valid:
            results.append(SelectionResult.failed(request.group_id, f"non-finite logits {where(request)}"))
            continue
        found = enlarged(best, request, choice, logits.shape[1], best_of)
        results.append(result_of(request, found, found.logprobs, None))
    return results


def perturbed_listed(
    logits: torch.Tensor, requests: Sequence[GumbelRequest], *, threads: int
) -> list[SelectionResult]:
    """As perturbed.perturbed_best."""
    results = []
    for request, choice in requests:
        count = request.rows
        setup = draw_rows(np.arange(count), np.zeros(count, np.int64), [choice], [count])
        asked = PerturbedRows(
            choice.logprob,
            choice.gumbel,
            choice.lineage,
            np.full(count, choice.position),
            np.full(count, choice.k),
        )
        told = listed_perturbed(group_rows(logits, request), listed(request), setup, asked, threads=threads)
        if not told.valid:
            results.append(SelectionResult.failed(request.group_id, f"non-finite logits {where(request)}"))
            continue
        best = group_best(told.found, told.logsumexp, choice.k)
        results.append(result_of_best(logits, request, best, TopCollector(threads), 0))
    return results
