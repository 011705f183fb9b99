"""Gumbel noise and sorts over whole rows in float64: the specification of `perturbed_topk`."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.reference.random import gumbels

F64 = NDArray[np.float64]


def log1mexp(x: F64) -> F64:
    """log(1 - exp(x)) for x <= 0, stable on both sides of -log(2) (Maechler 2012, "Accurately computing
    log(1 - exp(-|a|))")."""
    with np.errstate(divide="ignore"):
        return np.where(x > -np.log(2.0), np.log(-np.expm1(x)), np.log1p(-np.exp(x)))


def conditioned(g: F64, best: F64 | float, maximum: F64 | float) -> F64:
    """[n] Perturbed log-probabilities g, given that the largest of all, `best`, is `maximum`; inf: whatever
    it is. best, maximum: one of all, or of each g."""
    free = np.isinf(maximum)
    limit = np.where(free, 0.0, maximum)
    v = limit - g + log1mexp(g - best)
    return np.where(free, g, limit - np.maximum(0.0, v) - np.log1p(np.exp(-np.abs(v))))


def perturbed_row(
    logprobs: NDArray[np.float32], base: float, maximum: float, lineage: int, position: int, k: int
) -> tuple[NDArray[np.int64], F64]:
    """The k best tokens of one row [V], best first, of equals the lower token; and what they come to."""
    tokens = np.flatnonzero(logprobs > -np.inf)
    if not len(tokens):
        return tokens, np.empty(0)
    noise = gumbels(
        torch.from_numpy(np.array([lineage], np.uint64).view(np.int64)),
        torch.tensor([position]),
        torch.from_numpy(tokens)[None],
    ).numpy()[0]
    g = base + (logprobs[tokens].astype(np.float64) + noise)
    kept = np.sort(np.argsort(-g, kind="stable")[:k])
    perturbed = conditioned(g[kept], float(g.max()), maximum)
    # The condition may make equals of what differed by a hair: the lower token comes first then.
    order = np.argsort(-perturbed, kind="stable")
    return tokens[kept][order], perturbed[order]
