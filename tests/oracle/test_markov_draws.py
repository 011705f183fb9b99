"""Sampling and best-of on enumerable models: each sample, the ranking, and how often what is drawn."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode import BestOf, DecodeResult, NoLegalTokenError, Options, Sample
from tests.oracle.draw_rule import SampledPath, probabilities, sampled
from tests.oracle.markov import Asked, Markov, MarkovEngine, markov
from tests.oracle.markov_cases import FILTERS, models, options, prompts

EDGE = 1e-6
"""A uniform nearer to the edge between two tokens may fall on either side."""


@st.composite
def best_ofs(draw: st.DrawFn) -> BestOf:
    best_of = draw(st.integers(1, 6))
    n = draw(st.integers(1, best_of))
    enough = draw(st.none() | st.integers(n, best_of))
    rank_by = draw(st.sampled_from(["cumulative_logprob", "mean_logprob", "none"]))
    drawn = {name: draw(values) for name, values in FILTERS.items()}
    return BestOf(best_of=best_of, n=n, first_finished=enough, rank_by=rank_by, **drawn)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Markov, list[Asked]]:
    model = draw(models())
    strategies = st.builds(Sample, n=st.integers(1, 6), **FILTERS) | best_ofs()
    one = st.builds(Asked, prompts(model.vocab), strategies, options(model))
    return model, draw(st.lists(one, min_size=6, max_size=6))


@given(batches())
@settings(max_examples=40)
def test_each_sample_is_drawn_as_defined(batch: tuple[Markov, list[Asked]]) -> None:
    model, asked = batch
    for one, result in zip(asked, MarkovEngine(model).decode(asked), strict=True):
        check(model, one, result)


def check(model: Markov, asked: Asked, result: object) -> None:
    strategy = asked.strategy
    assert isinstance(strategy, (Sample, BestOf))
    assert strategy.seed is not None
    count = strategy.n if isinstance(strategy, Sample) else strategy.best_of
    every = [sampled(model, asked, strategy.seed, i) for i in range(count)]
    if min(path.gap for path in every) < EDGE:
        return
    found = [(i, path) for i, path in enumerate(every) if not path.stuck]
    if not found:
        assert isinstance(result, NoLegalTokenError), result
        return
    assert isinstance(result, DecodeResult), result
    want = found if isinstance(strategy, Sample) else ranked(strategy, found)
    assert result.exhausted == (len(want) < asked_for(strategy))
    assert [(c.index, c.token_ids) for c in result.candidates] == [(i, p.tokens) for i, p in want]
    for candidate, (_, path) in zip(result.candidates, want, strict=True):
        assert candidate.cumulative_logprob == pytest.approx(path.cumulative, abs=1e-4)


def asked_for(strategy: Sample | BestOf) -> int:
    """How many candidates make a result whole."""
    if isinstance(strategy, Sample) or strategy.rank_by != "none":
        return strategy.n
    return strategy.first_finished or strategy.best_of


def ranked(strategy: BestOf, found: list[tuple[int, SampledPath]]) -> list[tuple[int, SampledPath]]:
    """What counts had finished in the step in which enough had, or all that can; best first."""
    lengths = sorted(len(path.tokens) for _, path in found)
    last = lengths[min(strategy.first_finished or strategy.best_of, len(found)) - 1]
    counted = [(i, path) for i, path in found if len(path.tokens) <= last]
    if strategy.rank_by == "none":
        return counted
    counted.sort(key=lambda pair: len(pair[1].tokens))
    by_mean = strategy.rank_by == "mean_logprob"
    counted.sort(key=lambda pair: -pair[1].cumulative / (len(pair[1].tokens) if by_mean else 1))
    return counted[: strategy.n]


N = 3000


@pytest.mark.parametrize(
    ("filters", "chosen"),
    [
        ({}, {}),
        ({"temperature": 0.6}, {"min_tokens": 2}),
        ({"top_k": 2}, {"allowed_token_ids": (0, 1, 3)}),
        ({"top_p": 0.8}, {"presence_penalty": 1.5}),
        ({"min_p": 0.2, "temperature": 1.7}, {"logit_bias": {1: 1.0}}),
        ({"typical_p": 0.9}, {"no_repeat_ngram_size": 2}),
    ],
    ids=str,
)
def test_sequences_come_as_often_as_they_are_likely(
    filters: dict[str, float], chosen: dict[str, object]
) -> None:
    """Pearson's chi-square over all sequences, those rarer than 5 in N together, within five standard
    deviations of its mean."""
    model = markov(5, 4, [2], spread=0.8)
    settings = Options(**{"max_tokens": 3, **chosen})  # type: ignore[arg-type]
    asked = Asked((0, 1), Sample(n=N, seed=1, **filters), settings)  # type: ignore[arg-type]
    exact = probabilities(model, asked)
    assert sum(exact.values()) == pytest.approx(1.0)
    counts = Counter(c.token_ids for c in MarkovEngine(model).one(asked).candidates)
    assert set(counts) <= set(exact)
    often = [path for path, p in exact.items() if p * N >= 5]
    assert len(often) >= 4, "a test of one sequence shows nothing"
    bins = [(counts[path], exact[path] * N) for path in often]
    rest = sum(p for path, p in exact.items() if path not in often) * N
    if rest >= 1:
        bins.append((N - sum(n for n, _ in bins), rest))
    chi_square = sum((n - mean) ** 2 / mean for n, mean in bins)
    freedom = len(bins) - 1
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5, (chi_square, freedom)


def test_samples_of_one_seed_differ_and_come_again() -> None:
    """Each sample draws by itself: whatever n is, sample i is the same, and no two share their draws."""
    model = markov(6, 6, spread=0.2)
    engine = MarkovEngine(model)
    asked = Asked((0,), Sample(n=64, seed=3), Options(max_tokens=6))
    many = [c.token_ids for c in engine.one(asked).candidates]
    few = [c.token_ids for c in engine.one(replace(asked, strategy=Sample(n=5, seed=3))).candidates]
    other = [c.token_ids for c in engine.one(replace(asked, strategy=Sample(n=64, seed=4))).candidates]
    assert few == many[:5]
    assert many == [c.token_ids for c in engine.one(asked).candidates]
    # Of 6 ** 6 nearly equally likely sequences 64 draws hardly ever hit one twice.
    assert len(set(many)) >= 62
    assert len(set(many) | set(other)) >= 124
