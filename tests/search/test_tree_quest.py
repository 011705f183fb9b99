"""Algorithms of treequest as policies, on trees of known rewards."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from forkdecode import InvalidRequestError
from forkdecode.search import Branch, Expanded, How, TreeQuest
from tests.search.lab import ROOT, Lab


def test_treequest_repeats_for_a_seed_and_leaves_the_global_generators_alone() -> None:
    numpy = pytest.importorskip("numpy")
    import treequest

    def grown(seed: int) -> list[tuple[int, int | None]]:
        lab, policy = Lab(5, ends=0.1), TreeQuest(trials=20, seed=seed)
        lab.run(policy)
        pairs: list[tuple[Branch, float]] = treequest.top_k(policy.state, policy._algorithm, k=5)
        assert all(branch.score == score for branch, score in pairs)
        return [(b.id, b.parent) for b in lab.branches.values()]

    numpy.random.seed(1)
    random.seed(1)
    expected = (numpy.random.RandomState(1).random_sample(), random.Random(1).random())
    first = grown(3)
    assert (numpy.random.random_sample(), random.random()) == expected
    assert grown(3) == first
    assert any(grown(seed) != first for seed in range(4, 9))


@pytest.mark.parametrize("algorithm", ["ABMCTSA", "StandardMCTS", "TreeOfThoughtsBFSAlgo"])
def test_treequests_own_algorithms_run_unmodified(algorithm: str) -> None:
    import treequest

    lab, policy = Lab(1, ends=0.1), TreeQuest(getattr(treequest, algorithm)(), trials=12, batch=2)
    lab.run(policy)
    assert 0 < len(lab.branches) - 1 <= 12
    told_of = policy._algorithm.get_state_score_pairs(policy.state)
    assert {branch.id for branch, _ in told_of} <= set(lab.branches)


def test_trials_on_branches_without_room_are_answered_with_them() -> None:
    """Only the root's, which has no score, are not."""
    treequest = pytest.importorskip("treequest")

    class Counting:
        def __init__(self) -> None:
            self.own, self.asked, self.told = treequest.StandardMCTS(), 0, list[Any]()

        def init_tree(self) -> Any:
            return self.own.init_tree()

        def ask_batch(self, state: Any, size: int, actions: Any) -> Any:
            self.asked += size
            return self.own.ask_batch(state, size, actions)

        def tell(self, state: Any, trial: str, result: Any) -> Any:
            self.told.append(result)
            return self.own.tell(state, trial, result)

    counting = Counting()
    policy = TreeQuest(counting, trials=12, actions={"try": How(whole=True, after="again")})
    policy.begin(ROOT)
    for number in range(1, 20):
        work = policy.ask()
        if not work.expand:
            break
        [wanted] = work.expand
        end = Branch(number, 0, 1, "finished", "x", "x", scores=(0.5,), is_scored=True)
        policy.tell([Expanded(wanted, (end,) if wanted.node == 0 else ())])
    assert counting.asked == len(counting.told) == 12
    assert any(count > 1 for count in Counter(branch.id for branch, _ in counting.told).values())


def test_answers_are_refined_and_the_prompt_is_not() -> None:
    policy = TreeQuest(trials=30, actions={"try": How(whole=True, after="again:")})
    policy.begin(ROOT)
    seen = set()
    for number in range(1, 31):
        (expand,) = policy.ask().expand
        assert expand.how == How(whole=True, after="again:" if expand.node else "")
        seen.add(expand.node == 0)
        child = Branch(number, expand.node, 1, "finished", scores=(number / 30,), is_scored=True)
        policy.tell([Expanded(expand, (child,))])
    assert seen == {True, False}
    assert not policy.ask().expand
    assert len(policy.ranked()) == 30


def test_treequest_needs_scores_from_0_to_1() -> None:
    policy = TreeQuest(trials=2)
    policy.begin(ROOT)
    (expand,) = policy.ask().expand
    for score in (1.5, None):
        child = Branch(1, 0, 1, "open", scores=() if score is None else (score,), is_scored=score is not None)
        with pytest.raises(InvalidRequestError, match="scores from 0 to 1"):
            policy.tell([Expanded(expand, (child,))])
        policy.begin(ROOT)
        (expand,) = policy.ask().expand
