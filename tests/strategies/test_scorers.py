"""Scorers: their formulas, the bounds that "never" relies on, and callers' functions that misbehave."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forkdecode.errors import GroupFailedError, InvalidRequestError
from forkdecode.strategies.beam import BeamPolicy
from forkdecode.strategies.scorers import make_scores
from forkdecode.strategies.scoring import beam_score
from forkdecode.types import Beam, Contrastive, CustomScorer, DiverseBeam, LengthNormalised
from tests.strategies.toy import markov, run

SUMS = np.array([-6.0, -1.5, 0.0], np.float32)


def test_without_a_scorer_it_is_the_penalised_sum() -> None:
    scores = make_scores(Beam(length_penalty=0.7)).of(SUMS, 5)
    assert scores.tolist() == beam_score(SUMS, 5, 0.7).tolist()


def test_length_normalised_is_equation_14() -> None:
    scores = make_scores(Beam(scorer=LengthNormalised(alpha=0.6))).of(SUMS, 7)
    assert scores == pytest.approx(SUMS / (12 / 6) ** 0.6)


@pytest.mark.parametrize(("length", "baseline"), [(1, -2.0), (2, -5.0), (9, -5.0)])
def test_contrastive_takes_the_baseline_of_that_length(length: int, baseline: float) -> None:
    strategy = DiverseBeam(length_penalty=0.5, scorer=Contrastive((-2.0, -5.0), weight=0.4))
    scores = make_scores(strategy).of(SUMS, length)
    assert scores == pytest.approx((SUMS - 0.4 * baseline) / length**0.5)


def test_a_callers_function_gets_sums_length_and_data() -> None:
    seen: list[Any] = []

    def function(sums: Any, length: int, data: Any) -> Any:
        seen.append((sums.dtype, sums.tolist(), length, data))
        sums[:] = 0  # its own copy
        return [3, 2, 1]

    mine = SUMS.copy()
    scores = make_scores(Beam(scorer=CustomScorer(function, {"a": 1}))).of(mine, 4)
    assert scores.tolist() == [3.0, 2.0, 1.0]
    assert mine.tolist() == SUMS.tolist()
    assert seen == [(np.dtype("f8"), [-6.0, -1.5, 0.0], 4, {"a": 1})]


def raises(sums: Any, length: int, data: Any) -> Any:
    raise KeyError("price")


def exits(sums: Any, length: int, data: Any) -> Any:
    sys.exit(3)


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise SystemExit(4)


class Leaving:
    def __array__(self, *how: Any, **more: Any) -> Any:
        raise SystemExit(5)

    __repr__ = __array__


def raises_the_unspeakable(sums: Any, length: int, data: Any) -> Any:
    raise UnspeakableError


@pytest.mark.parametrize(
    ("function", "said"),
    [
        pytest.param(raises, "scorer: the function failed: KeyError: 'price'", id="raises"),
        pytest.param(lambda sums, length, data: sums[:1], "number for each of 3 hypotheses", id="short"),
        pytest.param(lambda sums, length, data: sums * np.nan, "a finite number for each of 3", id="nan"),
        pytest.param(lambda sums, length, data: 1.0, "a finite number for each of 3", id="scalar"),
        pytest.param(lambda sums, length, data: None, "a finite number for each of 3", id="none"),
        pytest.param(lambda sums, length, data: "abc", "a finite number for each of 3", id="text"),
        pytest.param(lambda sums, length, data: [[1], [2, 3]], "a finite number for each of 3", id="ragged"),
        pytest.param(exits, "scorer: the function failed: SystemExit: 3", id="exits"),
        pytest.param(
            lambda sums, length, data: torch.zeros(3, requires_grad=True), "a finite number", id="gradient"
        ),
        pytest.param(lambda sums, length, data: [10**400] * 3, "a finite number for each of 3", id="huge"),
        pytest.param(raises_the_unspeakable, "UnspeakableError, which can't be shown", id="unspeakable"),
        pytest.param(lambda sums, length, data: Leaving(), "not this Leaving", id="leaving"),
    ],
)
def test_a_function_that_misbehaves_fails_by_the_scorers_name(function: Any, said: str) -> None:
    with pytest.raises(GroupFailedError, match=r"^scorer: ") as caught:
        make_scores(Beam(scorer=CustomScorer(function))).of(SUMS, 2)
    assert said in str(caught.value)
    assert caught.value.field == "scorer"


@given(
    scorer=st.one_of(
        st.none(),
        st.builds(LengthNormalised, st.sampled_from([-1.0, -0.3, 0.0, 0.6, 2.0])),
        st.builds(
            Contrastive,
            st.lists(st.floats(-20, 2), min_size=1, max_size=6).map(tuple),
            st.sampled_from([-1.0, 0.5, 2.0]),
        ),
    ),
    total=st.floats(-30, 0, width=32),
    generated=st.integers(1, 8),
    more=st.integers(0, 8),
    lost=st.floats(0, 10, width=32),
)
def test_nothing_that_follows_scores_more_than_hoped(
    scorer: Any, total: float, generated: int, more: int, lost: float
) -> None:
    scores = make_scores(Beam(scorer=scorer))
    hope = scores.hope(np.float32(total), generated, 16)
    later = np.array([total - (lost if more else 0)], np.float32)
    assert scores.of(later, generated + more)[0] <= hope


def test_scores_depend_on_generated_tokens_alone() -> None:
    """The policy never learns how long the prompt is: the same tokens score the same after any."""
    model = markov(4, 9, eos=[1])
    found = [
        run(BeamPolicy(Beam(4, scorer=scorer), 6, np.array([1])), model, 6).results
        for scorer in (None, LengthNormalised(), Contrastive((-1.0, -2.0)))
    ]
    assert all(results for results in found)
    assert [score for _, score, _ in found[0]] != [score for _, score, _ in found[1]]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"scorer": 3}, "scorer"),
        ({"scorer": len}, "scorer"),
        ({"scorer": LengthNormalised(), "length_penalty": 0.5}, "length_penalty"),
        ({"scorer": CustomScorer(len), "length_penalty": 0.5}, "length_penalty"),
        ({"scorer": CustomScorer(len), "early_stopping": "never"}, "early_stopping"),
    ],
)
@pytest.mark.parametrize("kind", [Beam, DiverseBeam])
def test_what_does_not_go_together_is_refused_by_name(kind: Any, settings: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        kind(**settings)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Contrastive(()), "baseline"),
        (lambda: Contrastive((float("nan"),)), "baseline"),
        (lambda: Contrastive("abc"), "baseline"),
        (lambda: LengthNormalised(float("inf")), "alpha"),
        (lambda: CustomScorer("f"), "scorer"),
    ],
    ids=["empty", "nan", "text", "infinite", "no function"],
)
def test_scorers_are_checked(make: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        make()
    assert caught.value.field == field
