"""Votes: best-of-n, self-consistency and how long adaptive sampling goes on, against their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode import InvalidRequestError
from forkdecode.search import (
    AdaptiveConsistency,
    BestOfN,
    Branch,
    Dvts,
    Mcts,
    Policy,
    Pool,
    Rebase,
    SelfConsistency,
    StepBeam,
    TreeQuest,
    lead_confidence,
)
from forkdecode.search.pool import value
from tests.search.lab import ROOT, Lab, last


@given(seed=st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_weighted_best_of_n_is_the_sum_of_rewards_by_answer(seed: int) -> None:
    lab, policy = Lab(seed), BestOfN(12, answer=last)
    lab.run(policy)
    weights: dict[str | None, float] = {}
    for b in lab.finished:
        weights[last(b.completion)] = weights.get(last(b.completion), 0.0) + b.scores[-1]
    weights.pop(None, None)
    assert {v.answer: v.weight for v in policy.votes()} == pytest.approx(weights)
    if weights:
        best = policy.ranked()[0]
        answer = max(weights, key=lambda a: weights[a])
        assert last(best.completion) == answer
        assert best.score == max(b.scores[-1] for b in lab.finished if last(b.completion) == answer)
        votes = [last(b.completion) for b in policy.ranked()]
        assert None not in votes[: sum(v.count for v in policy.votes())]


@given(seed=st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_self_consistency_takes_the_most_frequent_answer(seed: int) -> None:
    lab, policy = Lab(seed), SelfConsistency(last, 12)
    lab.run(policy)
    found: list[object] = [last(b.completion) for b in lab.finished]
    votes = policy.votes()
    assert [v.count for v in votes] == sorted((found.count(v.answer) for v in votes), reverse=True)
    assert sum(v.count for v in votes) == sum(answer is not None for answer in found)
    if votes:
        assert last(policy.ranked()[0].completion) == votes[0].answer


def test_negative_scores_cannot_weigh_votes() -> None:
    with pytest.raises(InvalidRequestError, match="verifier: says -1, which cannot weigh"):
        Pool(last).add([Branch(1, 0, 1, "finished", completion="x", scores=(-1.0,), is_scored=True)])


def test_an_answer_that_can_t_be_told_leaves_its_branch_out() -> None:
    def unhashable(text: str) -> Any:
        return [text]

    for answer in (unhashable, int):
        pool = Pool(answer)
        pool.add([Branch(1, 0, 1, "open")])
        with pytest.raises((TypeError, ValueError)):
            pool.add([Branch(2, 0, 1, "finished", completion="x", scores=(1.0,), is_scored=True)])
        assert (pool.ranked(), pool.votes()) == ([], [])


def not_z(text: str) -> str:
    if text.endswith("z"):
        raise LookupError(text)
    return text[-1]


ANSWERING: dict[str, Callable[[], Policy]] = {
    "best of n": lambda: BestOfN(9, answer=not_z),
    "self-consistency": lambda: SelfConsistency(not_z, 9),
    "adaptive": lambda: AdaptiveConsistency(not_z, 20),
    "step beam": lambda: StepBeam(3, 3, answer=not_z),
    "dvts": lambda: Dvts(3, 3, answer=not_z),
    "rebase": lambda: Rebase(7, answer=not_z),
    "uct": lambda: Mcts(50, expand=3, batch=4, answer=not_z),
    "rollout": lambda: Mcts(50, expand=3, batch=2, rollout=True, answer=not_z),
    "ab-mcts": lambda: TreeQuest(trials=15, batch=3, answer=not_z),
}


@pytest.mark.parametrize("name", ANSWERING)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_answer_that_fails_leaves_no_other_branch_out(name: str, seed: int) -> None:
    lab, policy = Lab(seed), ANSWERING[name]()
    with pytest.raises(LookupError) as caught:
        lab.run(policy)
    failed = [branch for branch in lab.finished if branch.completion.endswith("z")]
    assert str(caught.value) == failed[0].completion
    assert {b.id for b in policy.ranked()} == {b.id for b in lab.finished} - {b.id for b in failed}


@pytest.mark.parametrize(
    ("aggregate", "expected"), [("last", 0.5), ("min", 0.2), ("mean", 0.5), ("product", 0.08)]
)
def test_aggregates(aggregate: str, expected: float) -> None:
    branch = Branch(1, 0, 1, "finished", scores=(0.8, 0.2, 0.5))
    assert value(branch, aggregate) == pytest.approx(expected)  # type: ignore[arg-type]


@given(first=st.integers(0, 40), second=st.integers(0, 40))
def test_the_confidence_is_the_integral_of_the_beta_density(first: int, second: int) -> None:
    norm = math.gamma(first + second + 2) / math.gamma(first + 1) / math.gamma(second + 1)
    steps = 4000
    points = ((i + 0.5) / steps / 2 + 0.5 for i in range(steps))
    integral = norm * sum(p**first * (1 - p) ** second for p in points) / steps / 2
    assert lead_confidence(first, second) == pytest.approx(integral, abs=1e-4)
    assert lead_confidence(first, second) + lead_confidence(second, first) == pytest.approx(1.0)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_adaptive_sampling_stops_when_and_only_when_it_may(seed: int) -> None:
    lab, policy = Lab(seed), AdaptiveConsistency(last, 20, batch=2)
    policy.begin(ROOT)
    drawn = 0
    while True:
        votes = [v.count for v in policy.votes()] + [0, 0]
        sure = any(votes) and (
            lead_confidence(votes[0], votes[1]) >= 0.95 or votes[0] - votes[1] > 20 - drawn
        )
        going = lab.round(policy)
        assert going == (not sure and drawn < 20)
        if not going:
            break
        drawn += lab.rounds[-1][0].expand[0].n
    assert drawn <= 20


def test_four_equal_votes_are_enough_and_three_are_not() -> None:
    assert lead_confidence(3, 0) == 0.9375
    assert lead_confidence(4, 0) == 0.96875
