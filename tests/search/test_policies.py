"""Each policy against its definition, on trees of known rewards, without a driver."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
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
    Expanded,
    How,
    Mcts,
    Policy,
    Pool,
    Rebase,
    SelfConsistency,
    StepBeam,
    TreeQuest,
    Work,
    lead_confidence,
    puct,
    uct,
)
from forkdecode.search.pool import value
from forkdecode.search.rebase import allocate

ROOT = Branch(0, None, 0, "open")


class Lab:
    """Carries out a policy's work with branches drawn at random, and keeps all of them."""

    def __init__(self, seed: int, *, ends: float = 0.3, cuts: float = 0.1) -> None:
        self._draw = random.Random(seed)
        self._ends, self._cuts = ends, cuts
        self.branches = {0: ROOT}
        self.rounds: list[tuple[Work, list[Expanded]]] = []

    def round(self, policy: Policy) -> bool:
        """One ask and tell; False at the end."""
        work = policy.ask()
        if not work.expand:
            self.rounds.append((work, []))
            return False
        results = [
            Expanded(e, tuple(self._child(e.node, e.how.whole, e.score) for _ in range(e.n)))
            for e in work.expand
        ]
        self.rounds.append((work, results))
        policy.tell(results)
        return True

    def run(self, policy: Policy, most: int = 1000) -> None:
        """To the end."""
        policy.begin(ROOT)
        for _ in range(most):
            if not self.round(policy):
                return
        raise AssertionError("it does not end")

    def _child(self, parent: int, whole: bool, score: str) -> Branch:
        above, draw = self.branches[parent], self._draw
        assert above.state == "open"
        sort = draw.random()
        ends = self._ends if not whole else 0.8
        state = "finished" if sort < ends else "cut" if sort < ends + self._cuts or whole else "open"
        scored = score == "all" or (score == "finished" and state == "finished")
        scores = (*above.scores, draw.random()) if scored else above.scores
        number = len(self.branches)
        text = draw.choice("xyz")
        child = Branch(
            number,
            parent,
            above.depth + 1,
            state,  # type: ignore[arg-type]
            text,
            above.completion + text,
            token_ids=(1,) * draw.randint(1, 4),
            logprob=-draw.random() * 4,
            scores=scores,
            is_scored=scored,
        )
        self.branches[number] = child
        return child

    @property
    def finished(self) -> list[Branch]:
        return [branch for branch in self.branches.values() if branch.is_finished]


def last(text: str) -> str | None:
    return text[-1] if text[-1] != "z" else None


EVERY: dict[str, Callable[[], Policy]] = {
    "best of n": lambda: BestOfN(9),
    "self-consistency": lambda: SelfConsistency(last, 9),
    "adaptive": lambda: AdaptiveConsistency(last, 20),
    "step beam": lambda: StepBeam(3, 3, aggregate="product"),
    "dvts": lambda: Dvts(3, 3),
    "rebase": lambda: Rebase(7, aggregate="mean"),
    "uct": lambda: Mcts(50, expand=3, batch=4),
    "rollout": lambda: Mcts(50, expand=3, batch=2, rollout=True, select=puct()),
    "ab-mcts": lambda: TreeQuest(trials=15, batch=3),
}


@pytest.mark.parametrize("name", EVERY)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_every_policy_ends_and_ranks_all_that_finished_and_nothing_else(name: str, seed: int) -> None:
    lab, policy = Lab(seed), EVERY[name]()
    lab.run(policy)
    assert sorted(b.id for b in policy.ranked()) == [b.id for b in lab.finished]
    pruned = [number for work, _ in lab.rounds for number in work.prune]
    assert len(set(pruned)) == len(pruned)
    assert not {b.id for b in policy.ranked()} & set(pruned)
    asked = [e.node for work, _ in lab.rounds for e in work.expand]
    assert not set(asked) & set(pruned)


# -- votes ------------------------------------------------------------------------------------------


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


# -- adaptive ---------------------------------------------------------------------------------------


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


# -- beams ------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000), width=st.integers(1, 4), expand=st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_a_beam_keeps_the_best(seed: int, width: int, expand: int) -> None:
    lab, policy = Lab(seed), StepBeam(width, expand)
    lab.run(policy)
    assert [(e.node, e.n) for e in lab.rounds[0][0].expand] == [(0, width * expand)]
    done = 0
    for (_, results), (after, _) in zip(lab.rounds, lab.rounds[1:], strict=False):
        children = sorted((c for r in results for c in r.children), key=lambda c: -c.scores[-1])
        kept, rest = children[:width], children[width:]
        done += sum(c.is_finished for c in kept)
        going = [c.id for c in kept if c.state == "open"] if done < width else []
        assert [(e.node, e.n) for e in after.expand] == [(c, expand) for c in going]
        assert set(after.prune) == {c.id for c in rest if not c.is_finished}


@given(seed=st.integers(0, 10_000), subtrees=st.integers(1, 4), expand=st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_dvts_subtrees_never_compete(seed: int, subtrees: int, expand: int) -> None:
    lab, policy = Lab(seed), Dvts(subtrees, expand)
    lab.run(policy)
    assert [(e.node, e.n) for e in lab.rounds[0][0].expand] == [(0, expand)] * subtrees
    for (_, results), (after, _) in zip(lab.rounds, lab.rounds[1:], strict=False):
        best = [max(r.children, key=lambda c: c.scores[-1]) for r in results]
        assert [(e.node, e.n) for e in after.expand] == [(b.id, expand) for b in best if b.state == "open"]


@given(
    rewards=st.lists(st.floats(-5, 5), min_size=1, max_size=12),
    width=st.integers(1, 64),
    temperature=st.floats(0.01, 10),
)
def test_rebase_shares_sum_to_the_width(rewards: list[float], width: int, temperature: float) -> None:
    shares = allocate(rewards, width, temperature)
    assert sum(shares) == width
    weights = [math.exp((r - max(rewards)) / temperature) for r in rewards]
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - width * weight / sum(weights)) < 1


@given(seed=st.integers(0, 10_000), width=st.integers(1, 12))
@settings(max_examples=50, deadline=None)
def test_rebase_spends_its_width_at_every_depth(seed: int, width: int) -> None:
    lab, policy = Lab(seed), Rebase(width)
    lab.run(policy)
    done = 0
    for (_, results), (after, _) in zip(lab.rounds, lab.rounds[1:], strict=False):
        children = [c for r in results for c in r.children]
        done += sum(c.is_finished for c in children)
        going = any(c.state == "open" for c in children)
        assert sum(e.n for e in after.expand) == (max(0, width - done) if going else 0)


# -- MCTS -------------------------------------------------------------------------------------------


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


# -- AB-MCTS ----------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("n", lambda: BestOfN(0)),
        ("answer", lambda: BestOfN(2, answer="x")),  # type: ignore[arg-type]
        ("answer", lambda: SelfConsistency(None, 2)),  # type: ignore[arg-type]
        ("confidence", lambda: AdaptiveConsistency(last, confidence=0.2)),
        ("width", lambda: StepBeam(0)),
        ("aggregate", lambda: StepBeam(aggregate="sum")),  # type: ignore[arg-type]
        ("subtrees", lambda: Dvts(-1)),
        ("temperature", lambda: Rebase(temperature=0.0)),
        ("simulations", lambda: Mcts(0)),
        ("select", lambda: Mcts(select="uct")),  # type: ignore[arg-type]
        ("exploration", lambda: uct(-1.0)),
        ("actions", lambda: TreeQuest(actions={})),
        ("actions", lambda: TreeQuest(actions={"a": "b"})),  # type: ignore[dict-item]
    ],
)
def test_wrong_settings_are_refused_by_name(field: str, make: Callable[[], object]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        make()
    assert caught.value.field == field
