"""GumbelTopK requests on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from forkdecode.sampling.allowed import ended
from forkdecode.sampling.device.kinds import Asked, Kind, Tops, not_finite
from forkdecode.sampling.sampler import draw_rows
from forkdecode.step import GumbelTopK, SelectionResult
from forkdecode_kernels.calls import Call, Keeping, Raw, Source, Steps, in_parts
from forkdecode_kernels.draw import NOT_FINITE, Distribution, Draws, draws_call
from forkdecode_kernels.perturbed import Perturbed, PerturbedRows, perturbed_call


@in_parts
def _filtered_and_noisy(asked: Asked[GumbelTopK]) -> Steps[tuple[Draws, Perturbed]]:
    """Filters, then noise over what they leave. Keeps the distribution."""
    filters, noise = _filters(asked), _noise(asked)
    source, sent = yield [*filters.arrays, *noise.arrays, asked.rows]
    n = len(filters.arrays)
    first = filters.launch(source, sent[:n])
    kept: Distribution = filters.kept
    assert kept.logprobs is not None, "it was asked for"
    raw = source.raw or Raw(source.values, sent[-1], kept.logsumexp)
    second = noise.launch(Source(kept.logprobs, raw), sent[n:-1])
    told = yield Keeping([*first, *second], kept)
    drawn = filters.read(told[: len(first)])
    return drawn, noise.read(told[len(first) :])


def _filters(asked: Asked[GumbelTopK]) -> Call[Draws]:
    nobody = np.zeros(len(asked.rows), np.int64)
    setup = draw_rows(asked.rows, nobody, asked.choices, asked.sizes)
    return draws_call(setup, np.empty(0, np.float64), distribution=True)


def _noise(asked: Asked[GumbelTopK]) -> Call[Perturbed]:
    rows = PerturbedRows(
        base=np.concatenate([c.logprob for c in asked.choices]),
        maximum=np.concatenate([c.gumbel for c in asked.choices]),
        lineage=np.concatenate([c.lineage for c in asked.choices]),
        position=asked.of_rows([c.position for c in asked.choices]),
        k=asked.of_rows([c.k for c in asked.choices]),
    )
    return perturbed_call(rows, asked.vocab)


def _shown(kept: Distribution) -> torch.Tensor | None:
    return kept.logprobs


def _results(asked: Asked[GumbelTopK], found: Any, tops: Tops, source: Source) -> list[SelectionResult]:
    drawn, best = found
    assert best.raw is not None, "a device tells it"
    edges = np.searchsorted(best.rows, asked.batch.starts)
    results = []
    for i, (request, choice) in enumerate(asked.pairs):
        if (drawn.status[asked.batch.own(i)] == NOT_FINITE).any():
            results.append(SelectionResult.failed(request.group_id, not_finite(asked, request)))
            continue
        rows, tokens, values = (a[edges[i] : edges[i + 1]] for a in (best.rows, best.tokens, best.perturbed))
        order = np.lexsort((tokens, rows, -values))[: choice.k]
        at = order + edges[i]
        own = (rows[order] - asked.batch.starts[i]).astype(np.int32)
        results.append(
            SelectionResult(
                request.group_id,
                own,
                tokens[order],
                best.raw[at],
                best.logprobs[at],
                values[order].astype(np.float32),
                tops.get(i),
                ended=ended(request, own, tokens[order]),
            )
        )
    return results


PERTURBED: Kind[GumbelTopK] = Kind(_filtered_and_noisy, False, _shown, _results)
