"""Draw and Gather requests on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from forkdecode.sampling.device.kinds import Asked, Kind, Tops
from forkdecode.sampling.group_logits import where
from forkdecode.sampling.sampler import Children, Drawn, draw_rows, results_of
from forkdecode.sampling.top_logprobs import TopCollector
from forkdecode.step import F32, I64, Draw, Gather, SelectionResult
from forkdecode_kernels.calls import Call, Source, Steps, in_parts
from forkdecode_kernels.draw import Distribution, Draws, draws_call


def _begin(asked: Asked[Draw]) -> Call[Any]:
    children = Children.of(asked.pairs)
    setup = draw_rows(asked.rows, children.count, asked.choices, asked.sizes)
    shown = any(r.num_logprobs for r in asked.batch.requests)
    return draws_call(setup, children.uniform, distribution=shown)


def _shown(kept: Distribution) -> torch.Tensor | None:
    return kept.logprobs


def _results(asked: Asked[Draw], found: Draws, tops: Tops, source: Source) -> list[SelectionResult]:
    top = TopCollector(1, {i: [t] for i, t in tops.items()})
    told = Drawn(found.tokens, found.raw, found.logprobs, found.status)
    return results_of(asked.pairs, Children.of(asked.pairs), told, top)


DRAWS: Kind[Draw] = Kind(_begin, False, _shown, _results)


@in_parts
def _gathered(rows: I64, at: I64, tokens: I64) -> Steps[tuple[F32, I64]]:
    """Log-softmax of tokens [N] after rows[at], and logsumexp [m] of the rows."""
    from forkdecode_kernels.triton import float_rows as fast

    source, (row, child, token) = yield [rows, at, tokens]
    logits = source.values
    logsumexp = fast.row_logsumexp(logits, row)
    chosen = logits[row[child], token].double() - logsumexp[child]
    logprobs, sums = yield [chosen.float(), logsumexp]
    return logprobs, sums


def _begin_gather(asked: Asked[Gather]) -> Call[Any]:
    at = [g.source + first for g, first in zip(asked.choices, asked.batch.starts, strict=False)]
    tokens = np.concatenate([g.tokens for g in asked.choices])
    return _gathered(asked.rows, np.concatenate(at).astype(np.int64), tokens.astype(np.int64))


def _named(asked: Asked[Gather], found: Any, tops: Tops, source: Source) -> list[SelectionResult]:
    logprobs, logsumexp = found
    edges = np.cumsum([0, *(len(g.tokens) for g in asked.choices)])
    results = []
    for i, (request, choice) in enumerate(asked.pairs):
        sums, raw = logsumexp[asked.batch.own(i)], logprobs[edges[i] : edges[i + 1]]
        if not np.isfinite(sums).all():
            what = "non-finite logits" if np.isnan(sums).any() else "no legal token"
            results.append(SelectionResult.failed(request.group_id, f"{what} {where(request)}"))
            continue
        top = tops.get(i) if request.num_logprobs else None
        zeros = np.zeros(len(raw), np.float32)
        results.append(SelectionResult(request.group_id, choice.source, choice.tokens, raw, raw, zeros, top))
    return results


GATHERS: Kind[Gather] = Kind(_begin_gather, False, None, _named)
