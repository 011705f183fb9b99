"""Draw requests: temperature, top-k, top-p, min-p, typical (transformers' order), then one draw a child."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from forkdecode_kernels.draw import NO_TOKEN, NOT_FINITE, OK, DrawRows, Draws, filtered_draw
from forkdecode_kernels.topk import row_topk
from numpy.typing import NDArray

from forkdecode import lineage
from forkdecode.sampling.group_logits import group_rows, processed_chunks, raw_logprobs, where
from forkdecode.sampling.top_logprobs import joined
from forkdecode.step import Draw, SelectionRequest, SelectionResult, TopLogprobs

DrawRequest = tuple[SelectionRequest, Draw]


def draw_plain(
    logits: torch.Tensor, requests: Sequence[DrawRequest], *, threads: int
) -> list[SelectionResult]:
    """Many groups at once, none with active processors or top log-probabilities."""
    rows = np.concatenate([np.arange(r.logits_start, r.logits_start + r.rows) for r, _ in requests])
    orders = [np.argsort(d.source, kind="stable") for _, d in requests]
    counts = np.concatenate([np.bincount(d.source, minlength=r.rows) for r, d in requests])
    uniform = np.concatenate([uniforms(d)[o] for (_, d), o in zip(requests, orders, strict=True)])
    setup = _draw_rows(rows, counts, requests)
    drawn = filtered_draw(logits, setup, uniform, threads=threads)
    row_of = np.repeat(np.arange(len(rows)), counts)
    safe = np.maximum(drawn.tokens, 0)
    raw = raw_logprobs(logits, rows[row_of], safe, drawn.logsumexp[row_of])
    results, row, child = [], 0, 0
    for (request, choice), order in zip(requests, orders, strict=True):
        children = slice(child, child + len(order))
        status = drawn.status[row : row + request.rows]
        results.append(
            _result(
                request,
                choice,
                status=status,
                order=order,
                tokens=drawn.tokens[children],
                raw=raw[children],
                chosen=drawn.logprobs[children],
            )
        )
        row, child = row + request.rows, child + len(order)
    return results


def draw_processed(
    logits: torch.Tensor, request: SelectionRequest, choice: Draw, *, threads: int
) -> SelectionResult:
    """One group, row chunk by row chunk, through its processors, with top log-probabilities if asked."""
    order = np.argsort(choice.source, kind="stable")
    counts = np.bincount(choice.source, minlength=request.rows)
    starts = np.concatenate([[0], np.cumsum(counts)])
    uniform = uniforms(choice)[order]
    tokens, raw, chosen, status, top = [], [], [], [], []
    for chunk in processed_chunks(logits, request, normalize=False, threads=threads):
        last = chunk.first + len(chunk.raw)
        setup = _draw_rows(np.arange(len(chunk.raw)), counts[chunk.first : last], [(request, choice)])
        drawn = filtered_draw(
            chunk.values,
            setup,
            uniform[starts[chunk.first] : starts[last]],
            distribution=bool(request.num_logprobs),
            threads=threads,
        )
        row_of = np.repeat(np.arange(len(chunk.raw)), counts[chunk.first : last])
        tokens.append(drawn.tokens)
        raw.append(raw_logprobs(chunk.raw, row_of, np.maximum(drawn.tokens, 0), chunk.logsumexp[row_of]))
        chosen.append(drawn.logprobs)
        status.append(drawn.status)
        if request.num_logprobs is not None:
            top.append(_top(chunk.raw, drawn, request.num_logprobs, threads))
    return _result(
        request,
        choice,
        status=np.concatenate(status),
        order=order,
        tokens=np.concatenate(tokens),
        raw=np.concatenate(raw),
        chosen=np.concatenate(chosen),
        top=joined(top) if top else None,
    )


def uniforms(choice: Draw) -> NDArray[np.float64]:
    """One uniform for each child, from its lineage and position alone."""
    return lineage.uniform(choice.lineage, choice.position)


def check_draw(logits: torch.Tensor, request: SelectionRequest, choice: Draw) -> None:
    """Raises ValueError for a request that contradicts itself."""
    if len(group_rows(logits, request)) != request.rows or request.rows < 1:
        raise ValueError(f"rows {request.logits_start} + {request.rows} reach outside the logits")
    if len(choice.source) != len(choice.lineage):
        raise ValueError(f"{len(choice.source)} sources for {len(choice.lineage)} lineages")
    if len(choice.source) and (choice.source.min() < 0 or choice.source.max() >= request.rows):
        raise ValueError(f"source outside 0 .. {request.rows - 1}")


def _draw_rows(
    rows: NDArray[np.int64], counts: NDArray[np.int64], requests: Sequence[DrawRequest]
) -> DrawRows:
    """requests: one for all `rows`, or one for each group of them."""
    repeats = [len(rows)] if len(requests) == 1 else [r.rows for r, _ in requests]

    def column(name: str, dtype: type[np.float64] | type[np.int64]) -> NDArray[np.generic]:
        return np.repeat(np.array([getattr(d, name) for _, d in requests], dtype), repeats)

    return DrawRows(
        rows.astype(np.int64),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        column("temperature", np.float64).astype(np.float64),
        column("top_k", np.int64).astype(np.int64),
        column("top_p", np.float64).astype(np.float64),
        column("min_p", np.float64).astype(np.float64),
        column("typical_p", np.float64).astype(np.float64),
    )


def _top(raw: torch.Tensor, drawn: Draws, k: int, threads: int) -> TopLogprobs:
    raw_ids, raw_values = row_topk(raw, k, normalized=False, threads=threads)
    if drawn.distribution is None:  # k = 0
        return TopLogprobs(raw_ids, raw_values, raw_ids, raw_values)
    ids, values = row_topk(torch.from_numpy(drawn.distribution), k, normalized=True, threads=threads)
    return TopLogprobs(raw_ids, raw_values, ids, values)


def _result(
    request: SelectionRequest,
    choice: Draw,
    *,
    status: NDArray[np.uint8],
    order: NDArray[np.int64],
    tokens: NDArray[np.int64],
    raw: NDArray[np.float32],
    chosen: NDArray[np.float32],
    top: TopLogprobs | None = None,
) -> SelectionResult:
    """Children come sorted by source row; `order` puts them back as the request lists them."""
    if (status == NOT_FINITE).any():
        return SelectionResult.failed(request.group_id, f"non-finite logits {where(request)}")
    if (status == NO_TOKEN).any():
        return SelectionResult.failed(request.group_id, f"no legal token {where(request)}")
    assert (status == OK).all()
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return SelectionResult(
        request.group_id,
        choice.source.astype(np.int32),
        tokens[back],
        raw[back],
        chosen[back],
        np.zeros(len(order), np.float32),
        top,
    )
