"""Each policy against its definition, on trees of known rewards, without a driver; and all together."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode import InvalidRequestError
from forkdecode.search import (
    AdaptiveConsistency,
    BestOfN,
    Dvts,
    Mcts,
    Policy,
    Rebase,
    SelfConsistency,
    StepBeam,
    TreeQuest,
    puct,
    uct,
)
from forkdecode.search.rebase import allocate
from tests.search.lab import Lab, last

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
