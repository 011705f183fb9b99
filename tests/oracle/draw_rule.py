"""Sampling in plain loops: the distribution that is drawn from, and each sample's draws."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from forkdecode import BestOf, Sample, lineage
from forkdecode.step import F32
from tests.oracle.beam_rule import Path
from tests.oracle.markov import Asked, Markov, draw_logits, ending, log_softmax

Drawn = Sample | BestOf


def distribution(logits: F32, strategy: Drawn) -> list[float]:
    """[V] after temperature, then top-k, top-p, min-p, typical sampling, each on what the one before has
    left. All zero where nothing is legal."""
    wide = [float(x) for x in logits]
    kept = {t for t, x in enumerate(wide) if x > -math.inf}
    if not kept:
        return [0.0] * len(wide)
    if strategy.temperature == 0.0:
        best = wide.index(max(wide))
        return [float(t == best) for t in range(len(wide))]
    wide = [x / strategy.temperature for x in wide]
    if strategy.top_k:
        kept = set(sorted(kept, key=lambda t: -wide[t])[: strategy.top_k])
    if strategy.top_p < 1:
        kept = _most_likely(wide, kept, strategy.top_p)
    least = max(wide) + (math.log(strategy.min_p) if strategy.min_p else -math.inf)
    kept = {t for t in kept if wide[t] >= least}
    if strategy.typical_p < 1:
        kept = _most_typical(wide, kept, strategy.typical_p)
    return _softmax(wide, kept)


def _softmax(values: list[float], kept: set[int]) -> list[float]:
    top = max(values[t] for t in kept)
    weights = [math.exp(x - top) if t in kept else 0.0 for t, x in enumerate(values)]
    return [w / sum(weights) for w in weights]


def _most_likely(values: list[float], kept: set[int], share: float) -> set[int]:
    """The fewest that together have at least `share`."""
    probs = _softmax(values, kept)
    return _until(sorted(kept, key=lambda t: -probs[t]), probs, share)


def _most_typical(values: list[float], kept: set[int], share: float) -> set[int]:
    """The same, but those come first whose surprise is nearest the entropy."""
    probs = _softmax(values, kept)
    entropy = -sum(p * math.log(p) for p in probs if p)
    return _until(sorted(kept, key=lambda t: abs(-math.log(probs[t]) - entropy)), probs, share)


def _until(order: list[int], probs: list[float], share: float) -> set[int]:
    chosen: set[int] = set()
    for token in order:
        chosen.add(token)
        if sum(probs[t] for t in chosen) >= share:
            break
    return chosen


@dataclass(frozen=True)
class SampledPath:
    """One sample. cumulative: of the model's own log-probabilities."""

    tokens: Path
    cumulative: float
    gap: float
    """How near a uniform came to another token."""
    stuck: bool = False
    """Nothing is legal after its tokens."""


def sampled(model: Markov, asked: Asked, seed: int, index: int) -> SampledPath:
    """Sample `index`: one uniform a token from its lineage and position, the first token whose cumulative
    probability exceeds it."""
    strategy, ends = asked.strategy, ending(model, asked)
    assert isinstance(strategy, Drawn)
    own = lineage.child(lineage.root(seed), index)
    path: Path = ()
    cumulative, gap = 0.0, 1.0
    while len(path) < asked.options.max_tokens and not (path and ends(path)):
        probs = distribution(draw_logits(model, asked, path), strategy)
        if not any(probs):
            return SampledPath(path, cumulative, gap, stuck=True)
        u = float(lineage.uniform(own, len(asked.prompt) + len(path)))
        below = np.cumsum(probs)
        token = next(t for t, p in enumerate(probs) if p and (u < below[t] or not any(probs[t + 1 :])))
        gap = min(gap, *(abs(u - float(edge)) for edge in below[:-1])) if len(probs) > 1 else gap
        cumulative += float(log_softmax(model.row([*asked.prompt, *path]))[token])
        path = (*path, token)
    return SampledPath(path, cumulative, gap)


def probabilities(model: Markov, asked: Asked) -> dict[Path, float]:
    """Of every complete sequence that can be drawn."""
    strategy, ends = asked.strategy, ending(model, asked)
    assert isinstance(strategy, Drawn)
    live: dict[Path, float] = {(): 1.0}
    found: dict[Path, float] = {}
    for length in range(1, asked.options.max_tokens + 1):
        grown = {
            (*path, token): p * q
            for path, p in live.items()
            for token, q in enumerate(distribution(draw_logits(model, asked, path), strategy))
            if q
        }
        live = {}
        for path, p in grown.items():
            (found if ends(path) or length == asked.options.max_tokens else live)[path] = p
    return found
