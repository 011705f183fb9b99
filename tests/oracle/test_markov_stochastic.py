"""Stochastic beams on enumerable models: the same noise on every sequence of the tree, the best of them."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode import DecodeResult, GroupFailedError, Options, StochasticBeam
from tests.oracle.draw_rule import distribution
from tests.oracle.markov import Asked, Markov, MarkovEngine, draw_logits, ending, markov
from tests.oracle.markov_cases import FILTERS, depth_of, models, options, prompts
from tests.oracle.stochastic_rule import without_replacement

NEAR = 1e-5


@st.composite
def batches(draw: st.DrawFn) -> tuple[Markov, list[Asked]]:
    model = draw(models())
    beams = st.builds(StochasticBeam, width=st.sampled_from([1, 2, 3, 5, 8, 200]), **FILTERS)
    one = st.builds(Asked, prompts(model.vocab), beams, options(model, min(4, depth_of(model.vocab))))
    return model, draw(st.lists(one, min_size=4, max_size=4))


@given(batches())
@settings(max_examples=40)
def test_equals_the_best_of_all_perturbed_sequences(batch: tuple[Markov, list[Asked]]) -> None:
    model, asked = batch
    for one, result in zip(asked, MarkovEngine(model).decode(asked), strict=True):
        check(model, one, result)


def check(model: Markov, asked: Asked, result: object) -> None:
    strategy = asked.strategy
    assert isinstance(strategy, StochasticBeam)

    def probs(path: tuple[int, ...]) -> list[float]:
        return distribution(draw_logits(model, asked, path), strategy)

    ends, longest = ending(model, asked), asked.options.max_tokens
    want, gap = without_replacement(strategy, probs, ends, longest, len(asked.prompt))
    if not want:
        assert isinstance(result, GroupFailedError), result
        return
    if gap < NEAR:
        return
    assert isinstance(result, DecodeResult), result
    assert result.exhausted is (len(want) < strategy.width)
    assert [c.token_ids for c in result.candidates] == [leaf.tokens for leaf in want]
    for candidate, leaf in zip(result.candidates, want, strict=True):
        assert candidate.score == pytest.approx(leaf.gumbel, abs=1e-4)
        assert candidate.selection_logprob == pytest.approx(leaf.logprob, abs=1e-4)
    scores = [c.score for c in result.candidates]
    assert scores == sorted(scores, reverse=True)
    assert all(map(math.isfinite, scores))
    assert len({c.token_ids for c in result.candidates}) == len(scores)


@pytest.mark.parametrize("temperature", [0.02, 0.01, 1e-3, 1e-6, 1e-300])
@pytest.mark.parametrize("chosen", [{}, {"allowed_token_ids": (0, 2, 3, 5)}], ids=["all", "some"])
def test_a_cold_beam_has_all_of_its_sequences(temperature: float, chosen: dict[str, tuple[int, ...]]) -> None:
    """Far below what a float32 holds of their probabilities; and then it is the likeliest that they are."""
    model, length, width = markov(3, 6, [], spread=1.5), 3, 8
    beam = StochasticBeam(width, temperature=temperature, seed=1)
    asked = Asked((1,), beam, Options(max_tokens=length, **chosen))  # type: ignore[arg-type]
    result = MarkovEngine(model).one(asked)
    assert not result.exhausted
    found = [c.token_ids for c in result.candidates]
    assert len(set(found)) == width
    assert all(math.isfinite(c.score) for c in result.candidates)

    def worth(path: tuple[int, ...]) -> float:
        rows = [draw_logits(model, asked, path[:i]) for i in range(length)]
        return sum(float(row[token] - row.max()) for row, token in zip(rows, path, strict=True))

    if temperature <= 1e-6:
        every = itertools.product(chosen.get("allowed_token_ids", range(6)), repeat=length)
        assert found == sorted(every, key=worth, reverse=True)[:width]
