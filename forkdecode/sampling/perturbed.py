"""GumbelTopK requests: the continuations of the highest perturbed log-probability over a group's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode.sampling.allowed import ended
from forkdecode.sampling.group_logits import Chunk, group_rows, processed_chunks, raw_logprobs, where
from forkdecode.sampling.sampler import draw_rows
from forkdecode.sampling.top_logprobs import TopCollector
from forkdecode.step import GumbelTopK, SelectionRequest, SelectionResult
from forkdecode_kernels.draw import NOT_FINITE, OK, filtered_draw
from forkdecode_kernels.perturbed import Perturbed, PerturbedRows, perturbed_topk

GumbelRequest = tuple[SelectionRequest, GumbelTopK]
_NO_UNIFORMS = np.empty(0, np.float64)


@dataclass(frozen=True, slots=True)
class _Best:
    """A group's best so far, best first: rows count from the group's first. logsumexp [r]: of the raw
    logits of the r rows seen so far. valid: none of these had NaN or +inf."""

    rows: NDArray[np.int64]
    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    perturbed: NDArray[np.float64]
    logsumexp: NDArray[np.float64]
    valid: bool

    def with_more(self, more: _Best, k: int) -> _Best:
        """The k best of both; more is of later rows. Ties fall to the lower row, then token."""
        rows = np.concatenate([self.rows, more.rows])
        tokens = np.concatenate([self.tokens, more.tokens])
        perturbed = np.concatenate([self.perturbed, more.perturbed])
        near = np.arange(len(rows))
        if len(rows) > k:  # a wide group has k candidates a row: most are far from the best
            near = np.flatnonzero(perturbed >= np.partition(perturbed, -k)[-k])
        order = near[np.lexsort((tokens[near], rows[near], -perturbed[near]))[:k]]
        return _Best(
            rows[order],
            tokens[order],
            np.concatenate([self.logprobs, more.logprobs])[order],
            perturbed[order],
            np.concatenate([self.logsumexp, more.logsumexp]),
            self.valid and more.valid,
        )


_NO_IDS, _NO_SUMS = np.empty(0, np.int64), np.empty(0, np.float64)
_NOTHING = _Best(_NO_IDS, _NO_IDS, np.empty(0, np.float32), _NO_SUMS, _NO_SUMS, True)


def perturbed_best(
    logits: torch.Tensor, requests: Sequence[GumbelRequest], *, threads: int
) -> list[SelectionResult]:
    """One result a request. Rows of which nothing is legal have no continuations, which is no error.

    Raises for the first group at fault.
    """
    top = TopCollector(threads)
    best = [_NOTHING] * len(requests)
    asked = [request for request, _ in requests]
    for chunk in processed_chunks(logits, asked, log_softmax=False, threads=threads):
        choices = [requests[piece.index][1] for piece in chunk.pieces]
        distribution, status = _distributions(chunk, choices, threads)
        found = perturbed_topk(distribution, _rows(chunk, choices), threads=threads)
        edges = np.searchsorted(found.rows, chunk.starts)
        for i, (piece, choice) in enumerate(zip(chunk.pieces, choices, strict=True)):
            listed, own = slice(edges[i], edges[i + 1]), slice(chunk.starts[i], chunk.starts[i + 1])
            more = _Best(
                found.rows[listed] - chunk.starts[i] + piece.first,
                found.tokens[listed],
                found.logprobs[listed],
                found.perturbed[listed],
                chunk.logsumexp[own],
                bool((status[own] != NOT_FINITE).all()),
            )
            best[piece.index] = best[piece.index].with_more(more, choice.k)
        top.add(logits, chunk, distribution)
    return [result_of_best(logits, request, best[i], top, i) for i, request in enumerate(asked)]


def group_best(found: Perturbed, logsumexp: NDArray[np.float64], k: int) -> _Best:
    """The k best of a group, of all its rows' own."""
    own = _Best(found.rows, found.tokens, found.logprobs, found.perturbed, logsumexp, True)
    return _NOTHING.with_more(own, k)


def _distributions(
    chunk: Chunk, choices: Sequence[GumbelTopK], threads: int
) -> tuple[torch.Tensor, NDArray[np.uint8]]:
    """[m, V] what a Draw with the same settings would draw from, -inf in rows of which nothing is left."""
    nobody = np.zeros(len(chunk.rows), np.int64)
    setup = draw_rows(np.arange(len(chunk.rows)), nobody, choices, [len(p) for p in chunk.pieces])
    drawn = filtered_draw(chunk.values, setup, _NO_UNIFORMS, distribution=True, threads=threads)
    distribution = drawn.distribution
    assert distribution is not None, "it was asked for"
    failed = np.flatnonzero(drawn.status != OK)
    if len(failed):
        distribution[torch.from_numpy(failed).to(distribution.device)] = -torch.inf
    return distribution.contiguous(), drawn.status


def _rows(chunk: Chunk, choices: Sequence[GumbelTopK]) -> PerturbedRows:
    own = [(c, slice(p.first, p.last), len(p)) for p, c in zip(chunk.pieces, choices, strict=True)]
    lengths = [length for _, _, length in own]
    return PerturbedRows(
        base=np.concatenate([c.logprob[rows] for c, rows, _ in own]),
        maximum=np.concatenate([c.gumbel[rows] for c, rows, _ in own]),
        lineage=np.concatenate([c.lineage[rows] for c, rows, _ in own]),
        position=np.repeat([c.position for c, _, _ in own], lengths),
        k=np.repeat([c.k for c, _, _ in own], lengths),
    )


def result_of_best(
    logits: torch.Tensor, request: SelectionRequest, best: _Best, top: TopCollector, index: int
) -> SelectionResult:
    if not best.valid:
        return SelectionResult.failed(request.group_id, f"non-finite processed logits {where(request)}")
    at = best.rows + request.logits_start
    return SelectionResult(
        request.group_id,
        best.rows.astype(np.int32),
        best.tokens,
        raw_logprobs(logits, at, best.tokens, best.logsumexp[best.rows]),
        best.logprobs,
        best.perturbed.astype(np.float32),
        top.of(index),
        ended=ended(request, best.rows, best.tokens),
    )


def check_gumbel(logits: torch.Tensor, request: SelectionRequest, choice: GumbelTopK) -> None:
    """Raises ValueError for a request that contradicts itself."""
    if len(group_rows(logits, request)) != request.rows or request.rows < 1:
        raise ValueError(f"rows {request.logits_start} + {request.rows} reach outside the logits")
    for name in ("logprob", "gumbel", "lineage"):
        if len(getattr(choice, name)) != request.rows:
            raise ValueError(f"{name} has {len(getattr(choice, name))} values for {request.rows} rows")
    if choice.k < 1 or not choice.temperature > 0:
        raise ValueError(f"k is {choice.k} and temperature {choice.temperature:g}; both must be above 0")
