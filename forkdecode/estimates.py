"""Estimates from a stochastic beam: properties of the whole distribution, from a few distinct sequences.

With p(y) = exp(selection_logprob) and kappa the lowest perturbed log-probability (score) in the beam, a
sequence is above kappa with probability

    q(y) = P(G(y) > kappa) = 1 - exp(-exp(log p(y) - kappa))

and for any f (Kool et al. 2019, "Stochastic beams and where to find them", section 4.2 and appendix D)

    E[f(y)] = sum over the beam, without its last sequence, of p(y) / q(y) * f(y)

holds on average over seeds, whatever the width. The last sequence only provides kappa. p is the distribution
that is sampled: with temperature, filters, processors and constraints, and with sequences cut off at
max_tokens. A beam that holds fewer sequences than its width holds all there are: then every q is 1 and the
sum is exact (unless some prefixes had no legal continuation at all: sequences below them are missing, and the
estimate is approximate).

`normalized=True` divides by the sum of the weights p / q: no longer unbiased, usually of less variance, and
exact for a constant f.

Works on results of LLM and of Client alike; needs only the standard library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forkdecode.errors import invalid
from forkdecode.results import Candidate, DecodeResult
from forkdecode.strategy_types import StochasticBeam


@dataclass(frozen=True, slots=True)
class Weighted:
    """A sequence of a beam. log_probability: log p. inclusion: q. log_weight: log(p / q), -inf for the one
    that gives kappa, which does not count."""

    candidate: Candidate
    log_probability: float
    inclusion: float
    log_weight: float

    @property
    def weight(self) -> float:
        """p / q: what f of the sequence is multiplied by."""
        return math.exp(self.log_weight)


def weighted(result: DecodeResult) -> tuple[Weighted, ...]:
    """The beam's sequences, best first, with their weights.

    Raises InvalidRequestError for a result of another strategy, for one that was cut short, and for a beam of
    width 1, whose one sequence is only kappa.
    """
    strategy, candidates = result.strategy, result.candidates
    if not isinstance(strategy, StochasticBeam):
        raise invalid("result", f"is of {type(strategy).__name__}", "one of StochasticBeam")
    if any(c.finish_reason == "cancelled" for c in candidates):
        raise invalid("result", "was ended before its beam was", "one that ran to its end")
    if len(candidates) < strategy.width:
        return tuple(_weighted(c, -math.inf) for c in candidates)
    if strategy.width == 1:
        raise invalid("result", "has one sequence, which only gives the threshold", "a width of 2 or more")
    *rest, last = sorted(candidates, key=lambda c: -c.score)
    least = _weighted(last, last.score)
    return (
        *(_weighted(c, last.score) for c in rest),
        Weighted(last, least.log_probability, least.inclusion, -math.inf),
    )


def expectation(result: DecodeResult, f: Callable[[Candidate], float], *, normalized: bool = False) -> float:
    """E[f(y)]. f is called once for each sequence that counts. Raises as `weighted` does."""
    return _sum([(w.log_weight, f(w.candidate)) for w in _counting(result)], normalized)


def probability(
    result: DecodeResult, condition: Callable[[Candidate], bool], *, normalized: bool = False
) -> float:
    """P(y is in a set): E[1 where `condition` holds]. Without `normalized` it may exceed 1."""
    return expectation(result, lambda c: float(bool(condition(c))), normalized=normalized)


def entropy(result: DecodeResult, *, normalized: bool = False) -> float:
    """H = E[-log p(y)], in nats."""
    return _sum([(w.log_weight, -w.log_probability) for w in _counting(result)], normalized)


def _weighted(candidate: Candidate, kappa: float) -> Weighted:
    log_p = candidate.selection_logprob
    log_q = _log_inclusion(log_p - kappa)
    return Weighted(candidate, log_p, math.exp(log_q), log_p - log_q)


def _log_inclusion(x: float) -> float:
    """log(1 - exp(-exp(x))): near x far below 0, where q is nearly exp(x), and 0 far above."""
    if x < -30.0:  # 1 - exp(-e) = e - e^2 / 2 + ..., and e is below 1e-13
        return x
    if x > 6.0:  # exp(-403) is nothing beside 1
        return 0.0
    return math.log(-math.expm1(-math.exp(x)))


def _counting(result: DecodeResult) -> list[Weighted]:
    return [w for w in weighted(result) if w.log_weight > -math.inf]


def _sum(terms: Sequence[tuple[float, float]], normalized: bool) -> float:
    """Of (log weight, value). Weights to be divided by their sum may all be far below what a float holds."""
    most = max(log_weight for log_weight, _ in terms) if normalized else 0.0
    weights = [math.exp(log_weight - most) for log_weight, _ in terms]
    total = math.fsum(weight * value for weight, (_, value) in zip(weights, terms, strict=True))
    return total / math.fsum(weights) if normalized else total
