"""Gather requests: the raw log-probabilities of named tokens, and of each row's likeliest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode.sampling.group_logits import CHUNK_BYTES, group_rows, raw_logprobs, where
from forkdecode.step import Gather, SelectionRequest, SelectionResult, TopLogprobs
from forkdecode_kernels.logsumexp import float_rows
from forkdecode_kernels.topk import row_topk

GatherRequest = tuple[SelectionRequest, Gather]


def gather_named(
    logits: torch.Tensor, requests: Sequence[GatherRequest], *, threads: int
) -> list[SelectionResult]:
    """One result a request; a group with NaN or +inf, or with nothing but -inf in a row, fails alone."""
    counts = [r.rows for r, _ in requests]
    rows = np.concatenate([np.arange(r.rows, dtype=np.int64) + r.logits_start for r, _ in requests])
    logsumexp = _logsumexp(logits, rows, threads)
    first = np.cumsum([0, *counts])
    picked = np.concatenate([g.source + at for (_, g), at in zip(requests, first, strict=False)])
    tokens = np.concatenate([g.tokens for _, g in requests])
    raw = raw_logprobs(logits, rows[picked], tokens, logsumexp[picked])
    children = np.cumsum([0, *(len(g.tokens) for _, g in requests)])
    return [
        _result(
            logits,
            request,
            gather,
            raw[children[i] : children[i + 1]],
            logsumexp[first[i] : first[i + 1]],
            threads,
        )
        for i, (request, gather) in enumerate(requests)
    ]


def check_gather(logits: torch.Tensor, request: SelectionRequest, choice: Gather) -> None:
    """Raises ValueError for a request that contradicts itself."""
    if len(group_rows(logits, request)) != request.rows or request.rows < 1:
        raise ValueError(f"rows {request.logits_start} + {request.rows} reach outside the logits")
    if len(choice.source) != len(choice.tokens):
        raise ValueError(f"{len(choice.source)} sources for {len(choice.tokens)} tokens")
    for name, values, limit in (
        ("source", choice.source, request.rows),
        ("token", choice.tokens, logits.shape[1]),
    ):
        if len(values) and (values.min() < 0 or values.max() >= limit):
            raise ValueError(f"{name} outside 0 .. {limit - 1}")


def cut(request: SelectionRequest, max_rows: int) -> Iterator[SelectionRequest]:
    """The request in pieces of at most `max_rows` logits rows, if it can be cut: rows that are only
    read from don't need each other. A source must not come before an earlier child's."""
    choice = request.choice
    if request.rows <= max_rows or not isinstance(choice, Gather):
        yield request
        return
    for first in range(0, request.rows, max_rows):
        rows = min(max_rows, request.rows - first)
        start, stop = np.searchsorted(choice.source, [first, first + rows])
        piece = Gather(choice.source[start:stop] - np.int32(first), choice.tokens[start:stop])
        yield replace(request, logits_start=request.logits_start + first, rows=rows, choice=piece)


def joined(requests: Sequence[SelectionRequest], results: Sequence[SelectionResult]) -> SelectionResult:
    """The result of a request from those of its pieces."""
    if len(results) == 1:
        return results[0]
    for result in results:
        if result.error is not None:
            return result
    first = requests[0].logits_start
    logprobs = np.concatenate([r.logprobs for r in results])
    tops = [r.top for r in results if r.top is not None]
    return SelectionResult(
        results[0].group_id,
        np.concatenate(
            [r.rows + np.int32(p.logits_start - first) for p, r in zip(requests, results, strict=True)]
        ),
        np.concatenate([r.tokens for r in results]),
        logprobs,
        logprobs,
        np.zeros(len(logprobs), np.float32),
        _one_top(np.concatenate([t.raw_ids for t in tops]), np.concatenate([t.raw for t in tops]))
        if tops
        else None,
    )


def _logsumexp(logits: torch.Tensor, rows: NDArray[np.int64], threads: int) -> NDArray[np.float64]:
    """[m] of each row; NaN where it holds NaN or +inf."""
    limit = max(1, CHUNK_BYTES // (4 * logits.shape[1]))
    sums = np.empty(len(rows), np.float64)
    for first in range(0, len(rows), limit):
        found = float_rows(logits, rows[first : first + limit], log_softmax=False, threads=threads)
        sums[first : first + limit] = np.where(found.valid, found.logsumexp, np.nan)
    return sums


def _result(
    logits: torch.Tensor,
    request: SelectionRequest,
    choice: Gather,
    raw: NDArray[np.float32],
    logsumexp: NDArray[np.float64],
    threads: int,
) -> SelectionResult:
    if not np.isfinite(logsumexp).all():
        what = "non-finite logits" if np.isnan(logsumexp).any() else "no legal token"
        return SelectionResult.failed(request.group_id, f"{what} {where(request)}")
    top = None
    if request.num_logprobs:
        top = _one_top(*row_topk(group_rows(logits, request), request.num_logprobs, threads=threads))
    zeros = np.zeros(len(raw), np.float32)
    return SelectionResult(request.group_id, choice.source, choice.tokens, raw, raw, zeros, top)


def _one_top(ids: NDArray[np.int64], values: NDArray[np.float32]) -> TopLogprobs:
    """What no processor has changed is likeliest before and after."""
    return TopLogprobs(ids, values, ids, values)
