"""Diverse beams against the plain rule, against a beam, and case by case."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.errors import GroupFailedError, InvalidRequestError
from forkdecode.step import FinishMask, RowTopK, SelectionResult
from forkdecode.strategies.beam import BeamPolicy
from forkdecode.strategies.diverse import DiverseBeamPolicy
from forkdecode.strategies.factory import make_policy
from forkdecode.strategies.hypotheses import EOS, LENGTH
from forkdecode.strategies.policy import GroupRows, StopHits
from forkdecode.types import Beam, DiverseBeam, Options
from tests.strategies.beam_reference import OfMarkov, diverse_beam_search
from tests.strategies.test_beam import ending, models
from tests.strategies.toy import Markov, Run, markov, run


def search(model: Markov, beam: DiverseBeam, max_tokens: int) -> Run:
    """By the policy itself, where the factory would take a beam for a group of all."""
    policy = DiverseBeamPolicy(beam, max_tokens, np.array(model.eos, np.int64))
    return run(policy, model, max_tokens)


@st.composite
def diverse_beams(draw: st.DrawFn) -> DiverseBeam:
    groups, width = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    return DiverseBeam(
        width=groups * width,
        groups=groups,
        diversity_penalty=draw(st.sampled_from([0.0, 0.25, 0.5, 2.0, 1e4])),
        num_return_sequences=draw(st.none() | st.integers(1, groups * width)),
        **draw(ending()),
    )


@given(models(), diverse_beams(), st.integers(1, 8))
@settings(max_examples=500, deadline=None)
def test_equals_the_plain_rule(model: Markov, beam: DiverseBeam, max_tokens: int) -> None:
    found = search(model, beam, max_tokens).results
    wanted = diverse_beam_search(OfMarkov(model), beam, max_tokens)
    assert [(path, reason) for path, _, reason in found] == [(path, reason) for path, _, reason in wanted]
    exact = 1e-12 if beam.scorer else 0.0
    assert [h[1] for h in found] == pytest.approx([h[1] for h in wanted], rel=exact, abs=exact)


@given(models(), st.integers(2, 6), ending(), st.integers(1, 8))
@settings(max_examples=150, deadline=None)
def test_one_group_is_a_beam(model: Markov, width: int, ends: dict[str, Any], max_tokens: int) -> None:
    beam = Beam(width, **ends)
    alone = run(BeamPolicy(beam, max_tokens, np.array(model.eos, np.int64)), model, max_tokens)
    assert search(model, DiverseBeam(width, 1, **ends), max_tokens).results == alone.results


@given(models(), diverse_beams(), st.integers(1, 8))
@settings(max_examples=100, deadline=None)
def test_the_first_group_is_a_beam_by_itself_and_all_are_without_a_penalty(
    model: Markov, beam: DiverseBeam, max_tokens: int
) -> None:
    width = beam.width // beam.groups
    ends: dict[str, Any] = {
        "length_penalty": beam.length_penalty,
        "early_stopping": beam.early_stopping,
        "scorer": beam.scorer,
    }
    ids = np.array(model.eos, np.int64)
    alone = run(BeamPolicy(Beam(width, **ends), max_tokens, ids), model, max_tokens).batch
    for penalty in (beam.diversity_penalty, 0.0):
        policy = DiverseBeamPolicy(DiverseBeam(beam.width, beam.groups, penalty, **ends), max_tokens, ids)
        run(policy, model, max_tokens)
        pools = [policy.hypotheses.of(group).best() for group in range(beam.groups)]
        assert alone is not None
        assert pools[0].score.tolist() == alone.score.tolist()
        if penalty == 0.0:
            assert all(pool.score.tolist() == alone.score.tolist() for pool in pools)


def test_the_factory_takes_a_beam_for_one_group() -> None:
    one = make_policy(DiverseBeam(4, 1, num_return_sequences=2), Options(), np.array([1]))
    assert isinstance(one, BeamPolicy)
    assert isinstance(make_policy(DiverseBeam(4, 4), Options(), np.array([1])), DiverseBeamPolicy)


def test_groups_of_one_take_different_tokens_under_a_high_penalty() -> None:
    model = markov(3, 12)
    found = search(model, DiverseBeam(6, 6, diversity_penalty=1e4), 5).results
    for position in range(5):
        assert len({path[position] for path, _, _ in found}) == 6


def test_a_token_costs_once_for_each_beam_that_took_it_and_is_not_kept() -> None:
    # Tokens 1 and 2 at -1.0 and -1.5, all else far behind: the third group pays twice for token 1.
    row = np.array([-9, -1, -1.5, -2.25], np.float32)
    model = Markov(np.tile(row, (4, 1)))
    found = search(model, DiverseBeam(3, 3, diversity_penalty=0.4), 1).results
    # -1 | -1.4 against -1.5 | -1.8 against -1.5
    assert [(path, score) for path, score, _ in found] == [((1,), -1.0), ((1,), -1.0), ((2,), -1.5)]


def test_what_ends_has_taken_its_token_too() -> None:
    """Token 1 ends the first group; the second would rather have it too, but for the penalty."""
    model = Markov(np.tile(np.array([-9, -1, -1.2, -8], np.float32), (4, 1)), eos=(1,))
    found = search(model, DiverseBeam(2, 2, 0.5, early_stopping=True), 4).results
    assert [(path, reason) for path, _, reason in found] == [((1,), EOS), ((2, 1), EOS)]


def test_a_group_that_has_ended_takes_no_more() -> None:
    """The first group ends with its first token; what the second takes later costs nothing."""
    logprobs = np.array(
        [[-9, -0.1, -3.0, -9], [-9] * 4, [-9, -9, -0.5, -0.6], [-9, -9, -9, -0.1]], np.float32
    )
    beam = DiverseBeam(2, 2, 4.0, early_stopping=True)
    found = search(Markov(logprobs, eos=(1,)), beam, 4)
    assert [r.num_rows for r in found.rows] == [1, 1, 1, 1]
    assert [path for path, _, _ in found.results] == [(1,), (2, 2, 2, 2)]
    assert found.results[1][2] == LENGTH


def test_asks_for_as_many_of_each_row_as_may_matter() -> None:
    prompt = GroupRows.prompt(5, 0)
    for stops, k in ((0, 12), (1, 13), (3, 15)):
        choice = DiverseBeamPolicy(DiverseBeam(12, 3), 9, np.arange(stops)).choose(prompt)
        assert (choice.k, choice.live, choice.finishing, choice.finishing_ids) == (k, 12, None, None)
    items = DiverseBeamPolicy(DiverseBeam(12, 3), 9, np.arange(2), ends_unforeseen=True).choose(prompt)
    assert (items.k, items.live) == (22, 20)
    assert items.finishing_ids is not None
    mask = FinishMask(np.ones((1, 3), np.bool_), np.zeros(1, np.int64))
    rows = GroupRows(
        0, 5, prompt.lineage, prompt.candidate, prompt.cumulative, prompt.selection, np.uint64(0), mask
    )
    last = DiverseBeamPolicy(DiverseBeam(12, 3), 1, np.arange(2)).choose(rows)
    assert isinstance(last, RowTopK)
    assert (last.k, last.live, last.finishing) == (14, 0, None)


def test_fewer_legal_tokens_than_beams_are_fewer_rows() -> None:
    logprobs = np.full((6, 6), -np.inf, np.float32)
    logprobs[:, 1:3] = [-0.5, -1.0]
    beam = DiverseBeam(6, 2, diversity_penalty=0.1)
    policy = DiverseBeamPolicy(beam, 3, np.empty(0, np.int64))
    found = run(policy, Markov(logprobs), 3)
    assert [r.num_rows for r in found.rows] == [1, 4, 6]
    assert not policy.exhausted


def test_nothing_legal_left_is_told() -> None:
    logprobs = np.full((3, 3), -np.inf, np.float32)
    logprobs[0, 1:] = -0.5
    logprobs[1:, 2] = -0.1
    policy = DiverseBeamPolicy(DiverseBeam(6, 2), 3, np.array([2]))
    found = run(policy, Markov(logprobs, eos=(2,)), 3)
    assert policy.exhausted
    assert [path for path, _, _ in found.results] == [(1, 2), (1, 2), (2,), (2,)]
    enough = DiverseBeamPolicy(DiverseBeam(6, 2, num_return_sequences=4), 3, np.array([2]))
    run(enough, Markov(logprobs, eos=(2,)), 3)
    assert not enough.exhausted


def test_nothing_legal_and_nothing_finished_fails_by_name() -> None:
    policy = DiverseBeamPolicy(DiverseBeam(4, 2), 9, np.array([7]))
    none = np.empty(0, np.float32)
    result = SelectionResult(0, np.empty(0, np.int32), np.empty(0, np.int64), none, none, none)
    with pytest.raises(GroupFailedError, match="no legal token at generated token 1"):
        policy.decide(result, GroupRows.prompt(3, 0), StopHits(np.empty(0, np.uint8)))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"groups": 3}, "groups"),
        ({"groups": 8}, "groups"),
        ({"diversity_penalty": -0.1}, "diversity_penalty"),
        ({"num_return_sequences": 5}, "num_return_sequences"),
        ({"early_stopping": "late"}, "early_stopping"),
        ({"width": 0}, "width"),
    ],
)
def test_is_checked(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        DiverseBeam(**settings)
    assert caught.value.field == field
