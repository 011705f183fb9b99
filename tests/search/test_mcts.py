"""Monte Carlo tree search against its formulas, on trees of known rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.search import Branch, Expanded, Mcts, puct, uct
from tests.search.lab import ROOT, Lab


@pytest.mark.parametrize("rollout", [False, True])
@given(seed=st.integers(0, 10_000), batch=st.integers(1, 4), expand=st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_visits_are_a_branchs_own_and_its_childrens(
    rollout: bool, seed: int, batch: int, expand: int
) -> None:
    lab, policy = Lab(seed), Mcts(40, expand=expand, batch=batch, rollout=rollout)
    policy.begin(ROOT)
    while lab.round(policy):
        if not policy._rollouts:  # else they are still to come
            check_visits(lab, policy)
    check_visits(lab, policy)
    assert policy.visits[0] <= 40


def check_visits(lab: Lab, policy: Mcts) -> None:
    visits, means = policy.visits, policy.means
    children: dict[int, list[int]] = {}
    for number in visits:
        parent = lab.branches[number].parent
        if parent is not None:
            children.setdefault(parent, []).append(number)
    for number, count in visits.items():
        below = children.get(number, [])
        assert count == sum(visits[c] for c in below) + (number != 0)
        if number == 0 and below:
            assert means[0] * count == pytest.approx(sum(means[c] * visits[c] for c in below))
    assert policy.most_visited()[0] is ROOT


def told(policy: Mcts, scores: Sequence[float], first: int, parent: Branch = ROOT) -> list[Branch]:
    """Answers an expansion of `parent` with open children of these scores."""
    (expand,) = policy.ask().expand
    assert expand.node == parent.id
    children = [
        Branch(
            first + i,
            parent.id,
            parent.depth + 1,
            "open",
            token_ids=(1,),
            logprob=-1.0,
            scores=(s,),
            is_scored=True,
        )
        for i, s in enumerate(scores)
    ]
    policy.tell([Expanded(expand, tuple(children))])
    return children


def test_uct_follows_its_formula() -> None:
    policy = Mcts(100, expand=2, select=uct(1.0))
    policy.begin(ROOT)
    bad, good = told(policy, [0.2, 0.6], 1)
    assert policy.ask().expand[0].node == good.id  # equal visits: the better
    policy = Mcts(100, expand=2, select=uct(1.0))
    policy.begin(ROOT)
    bad, good = told(policy, [0.2, 0.6], 1)
    told(policy, [0.0, 0.0], 3, good)
    # N = 4: good 0.2 + sqrt(ln 4 / 3) = 0.88, bad 0.2 + sqrt(ln 4 / 1) = 1.38
    assert policy.visits == {0: 4, 1: 1, 2: 3, 3: 1, 4: 1}
    assert policy.means[2] == pytest.approx(0.2)
    assert policy.ask().expand[0].node == bad.id
    assert uct(1.0)(0.2, 3, 4, 0.5) == pytest.approx(0.2 + math.sqrt(math.log(4) / 3))
    assert puct(2.0)(0.2, 3, 16, 0.5) == pytest.approx(0.2 + 2 * 0.5 * 4 / 4)


def test_puct_priors_are_the_steps_own_probabilities() -> None:
    policy = Mcts(100, expand=2, select=puct(10.0))
    policy.begin(ROOT)
    (expand,) = policy.ask().expand
    unlikely = Branch(1, 0, 1, "open", token_ids=(1,), logprob=-3.0, scores=(0.5,), is_scored=True)
    likely = Branch(2, 0, 1, "open", token_ids=(1, 2), logprob=-1.0, scores=(0.5,), is_scored=True)
    policy.tell([Expanded(expand, (unlikely, likely))])
    assert policy.ask().expand[0].node == 2


def test_a_rollout_that_nothing_can_follow_counts_as_unfinished() -> None:
    policy = Mcts(6, expand=2, rollout=True, unfinished=0.25)
    policy.begin(ROOT)
    [wanted] = policy.ask().expand
    steps = tuple(Branch(i, 0, 1, "open", "x", "x", token_ids=(1,)) for i in (1, 2))
    policy.tell([Expanded(wanted, steps)])
    first, second = policy.ask().expand
    end = Branch(3, 1, 2, "finished", "x", "xx", token_ids=(1,), scores=(0.75,), is_scored=True)
    policy.tell([Expanded(first, (end,)), Expanded(second, (), is_stuck=True)])
    assert policy.visits == {0: 2, 1: 1, 2: 1}
    assert policy.means == {0: 0.5, 1: 0.75, 2: 0.25}
    assert [expand.node for expand in policy.ask().expand] == [1]


def test_a_batch_selects_different_leaves() -> None:
    policy = Mcts(100, expand=3, batch=5)
    policy.begin(ROOT)
    told(policy, [0.9, 0.8, 0.1], 1)
    asked = [e.node for e in policy.ask().expand]
    assert sorted(asked) == [1, 2, 3]
