"""The likeliest tokens of each row, for the groups that ask for log-probabilities."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from forkdecode.sampling.device.values import Batch
from forkdecode.step import F32, I64
from forkdecode_kernels.calls import Steps, in_parts
from forkdecode_kernels.row_candidates import rows_call

Likeliest: TypeAlias = dict[int, tuple[I64, F32]]
"""For each group that asks: ids and log-probabilities [R, k], best first; id -1 with -inf where a row has
no more."""


@in_parts
def likeliest(batch: Batch, places: I64, vocab: int, *, normalized: bool) -> Steps[Likeliest]:
    """places [m]: which of the values each row of the batch is. normalized: they are log-probabilities."""
    wanted = {i: r.num_logprobs for i, r in enumerate(batch.requests) if r.num_logprobs is not None}
    found = {i: _none(batch.requests[i].rows, k) for i, k in wanted.items()}
    asking = [(i, k) for i, k in wanted.items() if k]
    if not asking:
        yield []
        yield []
        return found
    rows = np.concatenate([places[batch.own(i)] for i, _ in asking])
    owner = np.repeat([i for i, _ in asking], [batch.requests[i].rows for i, _ in asking])
    k = np.repeat([k for _, k in asking], [batch.requests[i].rows for i, _ in asking])
    part = rows_call(rows, k, np.zeros(len(rows), np.float32), vocab, normalized=normalized)
    source, sent = yield part.arrays
    told = yield part.launch(source, sent)
    best = part.read(told)
    rank = np.arange(len(best.row)) - np.searchsorted(best.row, best.row)
    for i, _ in asking:
        first, last = np.searchsorted(owner, [i, i + 1])
        own = slice(*np.searchsorted(best.row, [first, last]))
        ids, logprobs = found[i]
        at = best.row[own] - first, rank[own]
        ids[at], logprobs[at] = best.token[own], best.logprob[own]
    return found


def _none(rows: int, k: int) -> tuple[I64, F32]:
    return np.full((rows, k), -1, np.int64), np.full((rows, k), -np.inf, np.float32)
