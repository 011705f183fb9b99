"""Beam search against the plain rule, against enumeration, and case by case."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.errors import GroupFailedError, InvalidRequestError
from forkdecode.step import Draw, FinishMask, RowTopK, SelectionResult, TopK
from forkdecode.strategies.factory import make_policy
from forkdecode.strategies.hypotheses import EOS, LENGTH, LIVE, STOP
from forkdecode.strategies.policy import GroupRows, StopHits
from forkdecode.types import Beam, Contrastive, CustomScorer, LengthNormalised, Options
from tests.strategies.beam_reference import OfMarkov, beam_search
from tests.strategies.toy import Markov, Run, markov, run


def search(model: Markov, beam: Beam, max_tokens: int) -> Run:
    policy = make_policy(beam, Options(max_tokens=max_tokens), np.array(model.eos, np.int64))
    return run(policy, model, max_tokens)


@st.composite
def models(draw: st.DrawFn) -> Markov:
    vocab = draw(st.integers(2, 12))
    tokens = st.integers(0, vocab - 1)
    return markov(
        draw(st.integers(0, 10_000)),
        vocab,
        eos=draw(st.lists(tokens, max_size=3, unique=True)),
        pairs=draw(st.lists(st.tuples(tokens, tokens), max_size=4, unique=True)),
        levels=draw(st.sampled_from([None, 2, 4])),
        banned=draw(st.sampled_from([0.0, 0.3, 0.8])),
    )


scorers = st.one_of(
    st.builds(LengthNormalised, st.sampled_from([-0.5, 0.0, 0.6, 1.0])),
    st.builds(
        Contrastive,
        st.lists(st.sampled_from([-9.0, -4.0, -2.5, -1.0]), min_size=1, max_size=5).map(tuple),
        st.sampled_from([-0.5, 0.3, 1.0]),
    ),
    st.just(CustomScorer(lambda sums, length, data: -abs(sums + data) / length, 3.0)),
)


@st.composite
def ending(draw: st.DrawFn) -> dict[str, Any]:
    """early_stopping, length_penalty and scorer, as they go together."""
    early: Any = draw(st.sampled_from([True, False, "never"]))
    scorer = draw(st.none() | scorers)
    if isinstance(scorer, CustomScorer) and early == "never":
        early = False
    penalised = scorer is None or isinstance(scorer, Contrastive)
    penalty = draw(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0, 2.0])) if penalised else 1.0
    return {"early_stopping": early, "scorer": scorer, "length_penalty": penalty}


@st.composite
def beams(draw: st.DrawFn) -> Beam:
    ends = draw(ending())
    widths = tuple(draw(st.lists(st.integers(1, 20), max_size=5)))
    return Beam(
        width=max(widths, default=draw(st.integers(1, 20))),
        patience=draw(st.sampled_from([0.3, 1.0, 2.5])) if ends["early_stopping"] is True else 1.0,
        widths=widths,
        sibling_penalty=draw(st.sampled_from([0.0, 0.0, 0.25, 1.1])),
        **ends,
    )


@given(models(), beams(), st.integers(1, 8))
@settings(max_examples=400, deadline=None)
def test_equals_the_plain_rule(model: Markov, beam: Beam, max_tokens: int) -> None:
    found, wanted = search(model, beam, max_tokens).results, beam_search(OfMarkov(model), beam, max_tokens)
    assert [(path, reason) for path, _, reason in found] == [(path, reason) for path, _, reason in wanted]
    exact = 1e-12 if beam.scorer else 0.0
    assert [score for _, score, _ in found] == pytest.approx(
        [score for _, score, _ in wanted], rel=exact, abs=exact
    )


@given(st.integers(0, 1000), st.sampled_from([-1.0, 0.0, 1.0]), st.sampled_from([False, True, "never"]))
@settings(max_examples=30, deadline=None)
def test_a_beam_as_wide_as_the_tree_finds_every_sequence(
    seed: int, penalty: float, early: str | bool
) -> None:
    vocab, steps = 3, 4
    model = markov(seed, vocab, eos=[2])
    everything = []
    for length in range(1, steps + 1):
        for path in itertools.product(range(vocab), repeat=length):
            ended = path[-1] == 2
            if 2 in path[:-1] or (length < steps and not ended):
                continue
            total = np.float32(0)
            for last, token in itertools.pairwise((0, *path)):
                total = np.float32(total + model.logprobs[last, token])
            score = float(total / np.float32(length**penalty))
            everything.append((path, score, EOS if ended else LENGTH))
    everything.sort(key=lambda h: -h[1])
    beam = Beam(width=vocab**steps, length_penalty=penalty, early_stopping=early)
    found = search(model, beam, steps).results
    assert [h[1] for h in found] == [h[1] for h in everything]
    assert set(found) == set(everything)


@pytest.mark.parametrize("early", [True, False, "never"])
def test_width_one_is_greedy(early: bool) -> None:
    for seed in range(20):
        model = markov(seed, 8, eos=[3, 5])
        beam = Beam(width=1, length_penalty=1.0, early_stopping=early)
        out = search(model, beam, 10)
        path, last = [], 0
        while len(path) < 10 and last not in (3, 5):
            last = int(model.logprobs[last].argmax())
            path.append(last)
        assert [r[0] for r in out.results] == [tuple(path)]
        assert all(isinstance(c, Draw) and c.temperature == 0 for c in out.choices)
        total = np.float32(0)
        for a, b in itertools.pairwise((0, *path)):
            total = np.float32(total + model.logprobs[a, b])
        assert out.results[0][1] == float(total / np.float32(len(path)))


def test_asks_for_two_candidates_a_beam_or_one_more_than_there_are_stop_ids() -> None:
    for stops, k in ((0, 8), (1, 8), (2, 12), (3, 16)):
        policy = make_policy(Beam(width=4), Options(), np.arange(stops))
        choice = policy.choose(GroupRows.prompt(5, 0))
        assert isinstance(choice, TopK)
        assert (choice.k, choice.live, choice.finishing, choice.finishing_ids) == (k, 4, None, None)


def test_tells_what_finishes_unless_everything_does() -> None:
    mask = FinishMask(np.ones((1, 3), np.bool_), np.zeros(1, np.int64))
    rows = GroupRows(2, 7, *_columns(1), np.uint64(0), mask)
    policy = make_policy(Beam(width=2), Options(max_tokens=4), np.array([2]))
    choice = policy.choose(rows)
    assert isinstance(choice, TopK)
    assert choice.finishing is mask
    assert choice.finishing_ids is not None
    assert choice.finishing_ids.tolist() == [2]
    policy = make_policy(Beam(width=2), Options(max_tokens=3), np.array([2]))
    last = policy.choose(rows)
    assert isinstance(last, TopK)
    assert last.finishing is None


def _columns(n: int) -> tuple[np.ndarray, ...]:
    zeros = np.zeros(n)
    return zeros.astype(np.uint64), np.arange(n, dtype=np.int32), zeros, zeros.astype(np.float32)


def _result(scores: list[float], rows: list[int], tokens: list[int]) -> SelectionResult:
    values = np.array(scores, np.float32)
    return SelectionResult(0, np.array(rows, np.int32), np.array(tokens), values, values, values)


def test_what_ends_below_the_first_w_is_dropped() -> None:
    policy = make_policy(Beam(width=2), Options(max_tokens=9), np.array([7]))
    result = _result([-1, -2, -3, -4], [0, 0, 1, 1], [5, 6, 7, 8])
    decision = policy.decide(result, GroupRows(1, 3, *_columns(2), np.uint64(0)), _hits([0, 0, 1, 0]))
    assert decision.picks.tolist() == [0, 1]
    assert decision.parents.tolist() == [0, 0]
    assert len(decision.finished) == len(policy.hypotheses) == 0


def test_when_all_end_the_pool_is_the_answer() -> None:
    policy = make_policy(Beam(width=3), Options(max_tokens=9), np.array([7]))
    result = _result([-1, -2], [0, 1], [7, 7])
    decision = policy.decide(result, GroupRows(1, 3, *_columns(2), np.uint64(0)), _hits([1, 2]))
    assert decision.done
    assert decision.finished.reason.tolist() == [EOS, STOP]
    assert decision.finished.row.tolist() == [0, 1]
    assert policy.results().score.tolist() == [-0.5, -1.0]


def test_nothing_legal_and_nothing_finished_fails_by_name() -> None:
    policy = make_policy(Beam(width=3), Options(max_tokens=9), np.array([7]))
    rows = GroupRows(4, 6, *_columns(3), np.uint64(0))
    with pytest.raises(GroupFailedError, match="no legal token at generated token 5"):
        policy.decide(_result([], [], []), rows, _hits([]))


def test_nothing_legal_any_more_ends_with_what_has_finished() -> None:
    policy = make_policy(Beam(width=3), Options(max_tokens=9), np.array([7]))
    rows = GroupRows(4, 6, *_columns(3), np.uint64(0))
    policy.decide(_result([-1, -2], [0, 1], [7, 3]), rows, _hits([1, 0]))
    decision = policy.decide(_result([], [], []), rows, _hits([]))
    assert decision.done
    assert policy.results().token.tolist() == [7]


def _hits(reasons: list[int]) -> StopHits:
    return StopHits(np.array(reasons, np.uint8))


def test_never_hopes_for_the_full_length_and_false_does_not() -> None:
    # Token 1 ends at once; the path of 2s gets better per token the longer it grows.
    probabilities = np.array([[1e-9, 0.5, 0.5], [1e-9, 0.5, 0.5], [1e-9, 0.01, 0.99]], np.float32)
    model = Markov(np.log(probabilities), eos=(1,))
    beam = Beam(width=2, length_penalty=1.0, num_return_sequences=1, early_stopping=False)
    early = search(model, Beam(width=2, length_penalty=1.0, early_stopping=True), 20)
    never = search(model, Beam(width=2, length_penalty=1.0, early_stopping="never"), 20)
    assert len(early.choices) < len(search(model, beam, 20).choices) <= len(never.choices)
    assert never.results[0][0] == (2,) * 20


def test_num_return_sequences_cuts_the_pool() -> None:
    model = markov(4, 9, eos=[1])
    everything = search(model, Beam(width=4), 6).results
    assert len(everything) == 4
    assert search(model, Beam(width=4, num_return_sequences=2), 6).results == everything[:2]


def test_patience_keeps_a_larger_pool() -> None:
    model = markov(4, 9, eos=[1, 2])
    patient = search(model, Beam(width=4, patience=1.6, early_stopping=True), 30)
    assert len(patient.results) == 7
    assert len(patient.choices) > len(search(model, Beam(width=4, early_stopping=True), 30).choices)


def test_sums_are_those_of_the_path() -> None:
    out = search(markov(1, 9, eos=[1]), Beam(width=4, length_penalty=0.0), 6)
    assert out.batch is not None
    for path, total, raw in zip(out.paths, out.batch.selection, out.batch.cumulative, strict=True):
        assert total == np.add.accumulate(path.selection_logprobs, dtype=np.float32)[-1]
        assert raw == pytest.approx(path.logprobs.astype(np.float64).sum(), abs=1e-9)
    assert (out.batch.reason != LIVE).all()


def test_live_score_is_the_score_of_ending_now() -> None:
    policy = make_policy(Beam(width=2, length_penalty=2.0), Options(), np.array([1]))
    lineages, candidate, cumulative, _ = _columns(2)
    rows = GroupRows(3, 9, lineages, candidate, cumulative, np.array([-9, -18], np.float32), np.uint64(0))
    assert policy.live_score(rows).tolist() == [-1.0, -2.0]


@pytest.mark.parametrize("penalty", [-100.0, 100.0])
@pytest.mark.parametrize("early", [True, False, "never"])
@pytest.mark.filterwarnings("error")
def test_extreme_penalties_overflow_nothing(penalty: float, early: bool | str) -> None:
    for seed in range(20):
        beam = Beam(width=2, length_penalty=penalty, early_stopping=early)  # type: ignore[arg-type]
        out = search(markov(seed, 9, eos=[1]), beam, 12)
        assert np.isfinite([score for _, score, _ in out.results]).all()


# -- widths, siblings ---------------------------------------------------------------------------------


def test_each_step_has_its_width_and_the_pool_the_last() -> None:
    beam = Beam(width=6, widths=(2, 6, 3))
    out = search(markov(3, 12), beam, 6)
    assert [rows.num_rows for rows in out.rows] == [1, 2, 6, 3, 3, 3]
    assert len(out.results) == 3
    assert beam.pool_size == 3
    assert Beam(width=6, widths=(2, 6, 3), patience=1.5, early_stopping=True).pool_size == 5


def test_a_beam_that_shrinks_asks_for_enough() -> None:
    """Eight rows that would all rather end leave two that go on."""
    policy = make_policy(Beam(width=8, widths=(8, 2)), Options(), np.array([7, 9]))
    choice = policy.choose(GroupRows(1, 3, *_columns(8), np.uint64(0)))
    assert isinstance(choice, TopK)
    assert (choice.k, choice.live) == (2 + 2 * 8, 2)


def test_siblings_rank_behind_each_other_and_sums_stay_as_they_are() -> None:
    # From either token 1 goes on best; without the penalty both next rows would be token 1's children.
    logprobs = np.array([[-9, -0.5, -2.0], [-9, -0.2, -0.4], [-9, -0.1, -3]], np.float32)
    plain = search(Markov(logprobs), Beam(width=2), 2).results
    assert [path for path, _, _ in plain] == [(1, 1), (1, 2)]
    found = search(Markov(logprobs), Beam(width=2, sibling_penalty=1.5, length_penalty=0.0), 2)
    assert [path for path, _, _ in found.results] == [(1, 1), (2, 1)]
    assert [score for _, score, _ in found.results] == [
        float(np.float32(-0.5) + np.float32(-0.2)),
        float(np.float32(-2.0) + np.float32(-0.1)),
    ]
    assert all(isinstance(choice, RowTopK) and choice.k == 2 for choice in found.choices)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"widths": (2, 5)}, "widths"),
        ({"widths": (2, 3)}, "widths"),
        ({"widths": (0, 4)}, "widths"),
        ({"widths": 4}, "widths"),
        ({"widths": (4, 2), "num_return_sequences": 3}, "num_return_sequences"),
        ({"sibling_penalty": -1.0}, "sibling_penalty"),
        ({"sibling_penalty": float("nan")}, "sibling_penalty"),
    ],
)
def test_widths_and_siblings_are_checked(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Beam(width=4, **settings)
    assert caught.value.field == field
