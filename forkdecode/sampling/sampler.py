"""Draw requests: temperature, top-k, top-p, min-p, typical (transformers' order), then one draw a child."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode import lineage
from forkdecode.sampling.allowed import ended
from forkdecode.sampling.group_logits import (
    Chunk,
    group_rows,
    is_active,
    processed_chunks,
    raw_logprobs,
    where,
)
from forkdecode.sampling.top_logprobs import TopCollector, in_turn, wants_top
from forkdecode.step import Draw, GumbelTopK, SelectionRequest, SelectionResult, TopLogprobs
from forkdecode_kernels.draw import NO_TOKEN, NOT_FINITE, DrawRows, Draws, draws_with_tops, filtered_draw

DrawRequest = tuple[SelectionRequest, Draw]


@dataclass(frozen=True, slots=True)
class Children:
    """All children of a batch of groups, sorted by the logits row they continue.

    back [N]: where each child, in the groups' own order, went. count [m]: children of each row.
    uniform [N]: sorted like the children.
    """

    back: NDArray[np.int64]
    count: NDArray[np.int64]
    uniform: NDArray[np.float64]

    @staticmethod
    def of(requests: Sequence[DrawRequest]) -> Children:
        first = np.cumsum([0, *(r.rows for r, _ in requests)])
        row = np.concatenate([d.source + at for (_, d), at in zip(requests, first, strict=False)])
        order = np.argsort(row, kind="stable")
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return Children(
            back, np.bincount(row, minlength=first[-1]), uniforms([d for _, d in requests])[order]
        )


@dataclass(frozen=True, slots=True)
class Drawn:
    """What came of a batch: [N] of the children as sorted, and the status [m] of the rows."""

    tokens: NDArray[np.int64]
    raw: NDArray[np.float32]
    chosen: NDArray[np.float32]
    status: NDArray[np.uint8]

    @staticmethod
    def joined(parts: Sequence[Drawn]) -> Drawn:
        return Drawn(
            np.concatenate([p.tokens for p in parts]),
            np.concatenate([p.raw for p in parts]),
            np.concatenate([p.chosen for p in parts]),
            np.concatenate([p.status for p in parts]),
        )


def draw_plain(
    logits: torch.Tensor, requests: Sequence[DrawRequest], *, threads: int
) -> list[SelectionResult]:
    """Groups without active processors or top log-probabilities: straight from the logits."""
    rows = np.concatenate([np.arange(r.rows) + r.logits_start for r, _ in requests])
    children = Children.of(requests)
    choices = [d for _, d in requests]
    setup = draw_rows(rows, children.count, choices, [r.rows for r, _ in requests])
    drawn = filtered_draw(logits, setup, children.uniform, threads=threads)
    return results_of(requests, children, Drawn(drawn.tokens, drawn.raw, drawn.logprobs, drawn.status), None)


def draw_processed(
    logits: torch.Tensor, requests: Sequence[DrawRequest], *, threads: int
) -> list[SelectionResult]:
    """Groups with processors, or with top log-probabilities. Raises for the first group at fault."""
    return in_turn(
        [is_active(request) for request, _ in requests],
        requests,
        partial(draw_told, logits, threads=threads),
        partial(draw_changed, logits, threads=threads),
    )


def draw_told(
    logits: torch.Tensor, requests: Sequence[DrawRequest], *, threads: int
) -> list[SelectionResult]:
    """Groups with top log-probabilities alone: straight from the logits. What comes out is what draw_changed
    gives them, bit for bit."""
    rows = np.concatenate([np.arange(r.rows) + r.logits_start for r, _ in requests])
    sizes = [r.rows for r, _ in requests]
    children = Children.of(requests)
    setup = draw_rows(rows, children.count, [d for _, d in requests], sizes)
    k = np.repeat(np.array([r.num_logprobs or 0 for r, _ in requests], np.int64), sizes)
    drawn, tops = draws_with_tops(logits, setup, children.uniform, k, threads=threads)
    top, ends = TopCollector(threads), np.cumsum([0, *sizes]).tolist()
    for index, (request, _) in enumerate(requests):
        own = (slice(ends[index], ends[index + 1]), slice(request.num_logprobs))
        top.parts[index] = [
            TopLogprobs(tops.raw_ids[own], tops.raw[own], tops.shown_ids[own], tops.shown[own])
        ]
    return results_of(requests, children, Drawn(drawn.tokens, drawn.raw, drawn.logprobs, drawn.status), top)


def draw_changed(
    logits: torch.Tensor, requests: Sequence[DrawRequest], *, threads: int
) -> list[SelectionResult]:
    """Groups whose logits processors may change. Raises for the first group at fault."""
    asked = [r for r, _ in requests]
    children = Children.of(requests)
    starts = np.cumsum([0, *children.count])
    top = TopCollector(threads)
    parts: list[Drawn] = []
    done = 0
    for chunk in processed_chunks(logits, asked, log_softmax=False, threads=threads):
        last = done + len(chunk.rows)
        count, uniform = children.count[done:last], children.uniform[starts[done] : starts[last]]
        choices = [requests[p.index][1] for p in chunk.pieces]
        setup = draw_rows(np.arange(len(chunk.rows)), count, choices, [len(p) for p in chunk.pieces])
        dense = wants_top([p.request for p in chunk.pieces])
        drawn = filtered_draw(chunk.values, setup, uniform, distribution=dense, threads=threads)
        parts.append(_read(logits, chunk.rows, count, drawn, chunk.logsumexp))
        _add_top(top, logits, chunk, drawn)
        done = last
    return results_of(requests, children, Drawn.joined(parts), top)


def _add_top(top: TopCollector, logits: torch.Tensor, chunk: Chunk, drawn: Draws) -> None:
    dense = chunk.values if drawn.distribution is None else drawn.distribution
    top.add(logits, chunk, dense)


def uniforms(choices: Sequence[Draw]) -> NDArray[np.float64]:
    """One uniform for each child, from its lineage and position alone."""
    positions = np.repeat([d.position for d in choices], [len(d.lineage) for d in choices])
    return lineage.uniform(np.concatenate([d.lineage for d in choices]), positions)


def check_draw(logits: torch.Tensor, request: SelectionRequest, choice: Draw) -> None:
    """Raises ValueError for a request that contradicts itself."""
    if len(group_rows(logits, request)) != request.rows or request.rows < 1:
        raise ValueError(f"rows {request.logits_start} + {request.rows} reach outside the logits")
    if len(choice.source) != len(choice.lineage):
        raise ValueError(f"{len(choice.source)} sources for {len(choice.lineage)} lineages")
    if len(choice.source) and (choice.source.min() < 0 or choice.source.max() >= request.rows):
        raise ValueError(f"source outside 0 .. {request.rows - 1}")


def draw_rows(
    rows: NDArray[np.int64],
    count: NDArray[np.int64],
    choices: Sequence[Draw | GumbelTopK],
    repeats: Sequence[int],
) -> DrawRows:
    """count [m] draws of each row; choices[i] holds for repeats[i] of the rows."""

    def column(name: str) -> NDArray[np.float64]:
        return np.repeat(np.array([getattr(d, name) for d in choices], np.float64), repeats)

    return DrawRows(
        rows=rows.astype(np.int64),
        child_offsets=np.cumsum([0, *count]).astype(np.int64),
        temperature=column("temperature"),
        top_k=column("top_k").astype(np.int64),
        top_p=column("top_p"),
        min_p=column("min_p"),
        typical_p=column("typical_p"),
    )


def _read(
    logits: torch.Tensor,
    rows: NDArray[np.int64],
    count: NDArray[np.int64],
    drawn: Draws,
    logsumexp: NDArray[np.float64],
) -> Drawn:
    row_of = np.repeat(np.arange(len(rows)), count)
    raw = raw_logprobs(logits, rows[row_of], np.maximum(drawn.tokens, 0), logsumexp[row_of])
    return Drawn(drawn.tokens, raw, drawn.logprobs, drawn.status)


def results_of(
    requests: Sequence[DrawRequest], children: Children, drawn: Drawn, top: TopCollector | None
) -> list[SelectionResult]:
    """Children back in the order of each request; those of rows that nothing legal follows have none."""
    results: list[SelectionResult] = []
    row = child = 0
    for index, (request, choice) in enumerate(requests):
        status = drawn.status[row : row + request.rows]
        at = children.back[child : child + len(choice.source)]
        row, child = row + request.rows, child + len(choice.source)
        if (status == NOT_FINITE).any():
            results.append(SelectionResult.failed(request.group_id, f"non-finite logits {where(request)}"))
            continue
        source, stuck = choice.source.astype(np.int32), status == NO_TOKEN
        if stuck.any():
            follows = ~stuck[source]
            source, at = source[follows], at[follows]
        results.append(
            SelectionResult(
                request.group_id,
                source,
                drawn.tokens[at],
                drawn.raw[at],
                drawn.chosen[at],
                np.zeros(len(at), np.float32),
                top.of(index) if top else None,
                ended=ended(request, source, drawn.tokens[at]),
            )
        )
    return results
