"""Estimates from stochastic beams: unbiased where all can be enumerated, stable at any log-probability."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from forkdecode.errors import InvalidRequestError
from forkdecode.estimates import entropy, expectation, probability, weighted
from forkdecode.results import Candidate, DecodeResult, Usage
from forkdecode.types import Sample, StochasticBeam

USAGE = Usage(*(0,) * 12, *(0.0,) * 4)


def candidate(logprob: float, score: float, tokens: tuple[int, ...] = (1,), reason: Any = "eos") -> Candidate:
    return Candidate(0, tokens, "", reason, logprob, logprob, score)


def result(candidates: list[Candidate], strategy: Any = None) -> DecodeResult:
    chosen = StochasticBeam(len(candidates)) if strategy is None else strategy
    return DecodeResult("x", (1,), chosen, 0, tuple(candidates), USAGE)


P = np.array([0.4, 0.2, 0.15, 0.1, 0.08, 0.05, 0.015, 0.005])
"""Of eight sequences, named by their one token."""
F = np.array([3.0, -1.0, 4.0, 1.0, -5.0, 9.0, 2.0, -60.0])
RUNS = 4000


@cache
def beams(width: int) -> list[DecodeResult]:
    """Of many seeds: the `width` best of log p + Gumbel noise, which is what a stochastic beam returns (see
    tests/strategies/test_stochastic.py)."""
    phi = np.log(P)
    noisy = phi - np.log(-np.log(np.random.default_rng(width).random((RUNS, len(P)))))
    best = np.argsort(-noisy, axis=-1)[:, :width]
    return [
        result([candidate(float(phi[t]), float(row[t]), (int(t),)) for t in order])
        for row, order in zip(noisy, best, strict=True)
    ]


def f(one: Candidate) -> float:
    return float(F[one.token_ids[0]])


def is_unbiased(found: list[float], truth: float) -> bool:
    """Within 3.5 standard errors; the seeds are fixed."""
    error = float(np.std(found)) / math.sqrt(len(found))
    return abs(float(np.mean(found)) - truth) < 3.5 * error


@pytest.mark.parametrize("width", [2, 3, 5, 8])
def test_expectations_are_right_on_average(width: int) -> None:
    found = [expectation(one, f) for one in beams(width)]
    assert is_unbiased(found, float(P @ F))
    assert is_unbiased([entropy(one) for one in beams(width)], float(-(P @ np.log(P))))
    odd = [probability(one, lambda c: c.token_ids[0] % 2 == 1) for one in beams(width)]
    assert is_unbiased(odd, float(P[1::2].sum()))
    assert is_unbiased([expectation(one, lambda c: 1.0) for one in beams(width)], 1.0)


def test_wider_beams_and_normalised_weights_vary_less() -> None:
    spread = [np.std([entropy(one) for one in beams(width)]) for width in (2, 3, 5, 8)]
    assert spread == sorted(spread, reverse=True)
    normalised = [entropy(one, normalized=True) for one in beams(5)]
    assert np.std(normalised) < spread[2]
    assert abs(np.mean(normalised) + P @ np.log(P)) < 0.05


def test_a_plain_sum_over_the_beam_would_be_biased() -> None:
    """The test above can tell: without the weights it fails."""
    naive = [math.fsum(math.exp(c.selection_logprob) * f(c) for c in one.candidates) for one in beams(3)]
    assert not is_unbiased(naive, float(P @ F))


def test_normalised_is_exact_for_a_constant() -> None:
    for one in beams(3)[:50]:
        assert math.isclose(expectation(one, lambda c: 7.0, normalized=True), 7.0)
        assert 0 <= probability(one, lambda c: c.token_ids[0] < 2, normalized=True) <= 1


def test_weights_are_the_papers() -> None:
    found = weighted(result([candidate(-1.0, 0.5), candidate(-2.0, -1.5), candidate(-0.7, -2.5)]))
    for one, phi in zip(found[:2], (-1.0, -2.0), strict=True):
        q = 1 - math.exp(-math.exp(phi + 2.5))
        assert math.isclose(one.inclusion, q)
        assert math.isclose(one.weight, math.exp(phi) / q)
        assert one.log_probability == phi
    assert found[2].weight == 0.0


def test_a_beam_that_holds_all_there_are_is_summed_exactly() -> None:
    everything = [candidate(math.log(p), -float(i), (i,)) for i, p in enumerate(P)]
    found = result(everything, StochasticBeam(20))
    assert math.isclose(expectation(found, f), float(P @ F))
    assert math.isclose(entropy(found), float(-(P @ np.log(P))))
    assert [w.inclusion for w in weighted(found)] == [1.0] * len(P)


def test_long_sequences_neither_vanish_nor_overflow() -> None:
    """p / q tends to exp(kappa) where p is far below it: all weights here are e ** -900 as floats of 0."""
    far = [candidate(-1200.0, -890.0), candidate(-1100.0, -895.0), candidate(-1000.0, -900.0)]
    found = result(far)
    assert [w.weight for w in weighted(found)] == [0.0, 0.0, 0.0]
    assert math.isclose(entropy(found, normalized=True), 1150.0)
    near = [candidate(-700.0, -40.0), candidate(-45.0, -41.0), candidate(-3.0, -42.0)]
    first, second, _ = weighted(result(near))
    assert math.isclose(first.weight, math.exp(-42.0))
    assert math.isclose(second.weight, math.exp(-45.0) / -math.expm1(-math.exp(-3.0)))
    assert math.isclose(
        weighted(result([candidate(-1.0, 2.0), candidate(-1.0, -700.0)]))[0].weight, math.exp(-1)
    )


def test_what_is_no_finished_stochastic_beam_is_refused() -> None:
    pair = [candidate(-1.0, -1.0), candidate(-2.0, -2.0)]
    with pytest.raises(InvalidRequestError, match=r"^result: is of Sample"):
        expectation(result(pair, Sample(2)), f)
    with pytest.raises(InvalidRequestError, match=r"^result: was ended before"):
        entropy(result([pair[0], replace(pair[1], finish_reason="cancelled")]))
    with pytest.raises(InvalidRequestError, match=r"^result: has one sequence"):
        entropy(result(pair[:1]))
