"""What many groups do at once is what each policy's decide() says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.step import SelectionResult
from forkdecode.strategies.factory import make_policy
from forkdecode.strategies.policy import Decision, GroupRows, Policy, StopHits
from forkdecode.strategies.together import GoingOn, go_on_together
from forkdecode.types import Beam, BestOf, DiverseBeam, Greedy, Options, Sample, StochasticBeam, Strategy

NO_IDS = np.empty(0, np.int64)
BEAMS = st.builds(Beam, st.integers(2, 5)) | st.sampled_from(
    [Beam(4, widths=(2, 4, 3)), Beam(1), Beam(3, sibling_penalty=0.5)]
)
OTHERS = st.sampled_from(
    [Greedy(), Sample(3, seed=1), BestOf(4, n=2, seed=1), DiverseBeam(4, groups=2), StochasticBeam(3, seed=2)]
)


def rows_of(strategy: Strategy, generated: int, rng: np.random.Generator, policy: Policy) -> GroupRows:
    count = policy.max_rows if generated else 1
    return GroupRows(
        generated=generated,
        position=10 + generated,
        lineage=rng.integers(0, 1 << 60, count).astype(np.uint64),
        candidate=np.arange(count, dtype=np.int32),
        cumulative=-rng.random(count),
        selection=-rng.random(count).astype(np.float32),
        root=np.uint64(7),
    )


def result_of(policy: Policy, rows: GroupRows, rng: np.random.Generator) -> SelectionResult:
    """As a model would answer; of beams sometimes fewer candidates than rows are wanted."""
    if policy.streams_candidates or policy.max_rows == 1:
        count = policy.max_rows
        parents = np.arange(count) if rows.generated else np.zeros(count)
    else:
        count = int(rng.integers(1, 2 * policy.max_rows + 1))
        parents = rng.integers(0, rows.num_rows, count)
    raw, chosen, scores = -rng.random((3, count)).astype(np.float32)
    return SelectionResult(1, parents.astype(np.int32), rng.integers(10, 99, count), raw, chosen, scores)


def assert_same(going: GoingOn, decision: Decision, result: SelectionResult, rows: GroupRows) -> None:
    assert not decision.done
    assert not len(decision.finished)
    expected = decision.next_rows(rows)
    pairs: list[tuple[Any, Any]] = [
        (getattr(going.rows, name), getattr(expected, name)) for name in GroupRows.__dataclass_fields__
    ]
    picks = decision.picks
    pairs += [
        (going.parents, decision.parents),
        (going.tokens, decision.tokens),
        (going.logprobs, result.logprobs[picks]),
        (going.selection_logprobs, result.selection_logprobs[picks]),
    ]
    for found, wanted in pairs:
        if isinstance(wanted, np.ndarray):
            assert found.dtype == wanted.dtype
            assert found.tolist() == wanted.tolist()
        else:
            assert found == wanted
    if going.stays:
        assert decision.parents.tolist() == list(range(rows.num_rows))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.tuples(BEAMS | OTHERS, st.integers(0, 4)), min_size=1, max_size=8), st.integers(0, 999))
def test_as_each_policy_decides(asked: list[tuple[Strategy, int]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    policies = [make_policy(strategy, Options(max_tokens=20), NO_IDS) for strategy, _ in asked]
    rows = [rows_of(s, generated, rng, p) for (s, generated), p in zip(asked, policies, strict=True)]
    results = [result_of(p, r, rng) for p, r in zip(policies, rows, strict=True)]
    counts = [p.goes_on(a, r) for p, a, r in zip(policies, results, rows, strict=True)]
    found = go_on_together(policies, results, rows, counts)
    for policy, result, before, count, going in zip(policies, results, rows, counts, found, strict=True):
        assert going is None or count
        if going is not None:
            live = StopHits(np.zeros(len(result.tokens), np.uint8))
            assert_same(going, policy.decide(result, before, live), result, before)


@pytest.mark.parametrize("early", [True, False, "never"])
def test_a_beam_that_is_over_is_asked_alone(early: Any) -> None:
    """A full pool ends a beam when nothing that lives can matter any more."""
    rng = np.random.default_rng(3)
    policy = make_policy(Beam(2, early_stopping=early), Options(max_tokens=20), NO_IDS)
    rows = rows_of(Beam(2), 3, rng, policy)
    none = np.zeros(2, np.float32)
    best = SelectionResult(1, np.array([0, 1], np.int32), np.array([1, 2]), none, none, none)
    policy.decide(best, rows, StopHits(np.ones(2, np.uint8)))
    worse = np.full(4, -9.0, np.float32)
    result = SelectionResult(1, np.zeros(4, np.int32), np.arange(4), worse, worse, worse)
    assert policy.goes_on(result, rows) == 0
    assert policy.decide(result, rows, StopHits(np.zeros(4, np.uint8))).done


@pytest.mark.parametrize("wrong", [-1, 2])
def test_parents_that_are_no_rows_are_left_to_each(wrong: int) -> None:
    rng = np.random.default_rng(0)
    policies = [make_policy(Beam(2), Options(max_tokens=20), NO_IDS) for _ in range(3)]
    rows = [rows_of(Beam(2), 2, rng, policy) for policy in policies]
    results = [result_of(p, r, rng) for p, r in zip(policies, rows, strict=True)]
    results[1].rows[0] = wrong
    counts = [p.goes_on(a, r) for p, a, r in zip(policies, results, rows, strict=True)]
    assert go_on_together(policies, results, rows, counts) == [None] * 3
