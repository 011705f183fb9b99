"""Groups whose candidates are held to a constraint, on the toy model."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from forkdecode.constraint_types import FromCatalogue
from forkdecode.errors import NoLegalTokenError
from forkdecode.scheduler.events import CandidateStuck, GroupEvent, GroupFailed, GroupFinished
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.types import Beam, BestOf, Greedy, Sample, Strategy
from tests.constraints.toy import NOTHING, Form, Table, items_table, random_table
from tests.scheduler.engines import VOCAB, assert_idle, decode_alone, request, run, toy_engine

STRATEGIES: list[Strategy] = [
    Greedy(),
    Sample(n=5, seed=3),
    BestOf(best_of=6, n=3, seed=4),
    Beam(width=1),
    Beam(width=4),
    Beam(width=4, early_stopping=True),
]
EOS = 31
ITEM = FromCatalogue("items", end="item")


def held(what: DecodeRequest, table: Table) -> DecodeRequest:
    return dataclasses.replace(what, constraint=table)


@pytest.mark.parametrize("form", ["lists", "bits"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_no_candidate_leaves_the_constraint(strategy: Strategy, form: Form) -> None:
    table = random_table(5, VOCAB, form=form, also=(EOS,), also_states=frozenset({1, 2}))
    found = decode_alone(held(request("a", [4, 5, 6], strategy, eos=[EOS], max_tokens=12), table))
    assert found
    for candidate in found:
        assert table.accepts(candidate.token_ids)
    assert max(table.asked) <= 6


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_both_ways_to_tell_are_the_same(strategy: Strategy) -> None:
    asked = request("a", [4, 5, 6], strategy, eos=[EOS], max_tokens=12)
    of = [
        decode_alone(
            held(asked, random_table(8, VOCAB, form=form, also=(EOS,), also_states=frozenset({1, 2})))
        )
        for form in ("lists", "bits")
    ]
    assert of[0] == of[1]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_a_complete_item_ends_its_candidate(strategy: Strategy) -> None:
    items = [(1, 2, 3), (1, 2, 4), (1, 7), (9, 9, 9, 9), (9, 8, 1), (5, 6)]
    table = items_table(items, VOCAB)
    found = decode_alone(held(request("a", [4, 5], strategy, max_tokens=8, constraint=ITEM), table))
    for candidate in found:
        assert candidate.token_ids in items
        assert candidate.finish_reason == "stop"


def finished(what: DecodeRequest) -> GroupFinished:
    engine = toy_engine()
    engine.submit(what)
    event = run(engine)[what.request_id]
    assert isinstance(event, GroupFinished), event
    return event


@pytest.mark.parametrize("eos", [None, EOS])
@pytest.mark.parametrize("count", [1, 3, 4, 5])
def test_fewer_items_than_beams_are_all_there_is(count: int, eos: int | None) -> None:
    items = [(1, 2, 3), (1, 2, 4), (7, 7), (9, 9, 9, 9), (9, 8, 1)][:count]
    options = {"constraint": ITEM} if eos is None else {}
    asked = request("a", [4, 5], Beam(width=4), () if eos is None else [eos], max_tokens=8, **options)
    event = finished(held(asked, items_table(items, VOCAB, eos)))
    tail = () if eos is None else (eos,)
    found = [c.token_ids for c in event.candidates]
    assert len(set(found)) == len(found) == min(count, 4)
    assert set(found) <= {(*item, *tail) for item in items}
    assert event.exhausted is (count < 4)


def test_num_return_sequences_that_can_be_had_is_not_exhausted() -> None:
    table = items_table([(1, 2), (1, 3)], VOCAB)
    asked = request("a", [4], Beam(width=4, num_return_sequences=2), max_tokens=8, constraint=ITEM)
    assert not finished(held(asked, table)).exhausted


def test_a_pool_that_max_tokens_leaves_half_full_is_not_exhausted() -> None:
    asked = request("a", [4], Beam(width=4, patience=2.0, early_stopping=True), max_tokens=3)
    event = finished(asked)
    assert len(event.candidates) == 4
    assert not event.exhausted


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_min_tokens_leaves_longer_items_alone(strategy: Strategy) -> None:
    items = [(1, 2, 3), (1, 7, 8), (9, 9, 9, 9), (9, 9, 1)]
    table = items_table([*items, (4,), (6,), (3,)], VOCAB)
    asked = request("a", [4, 5], strategy, max_tokens=8, min_tokens=3, constraint=ITEM)
    for candidate in decode_alone(held(asked, table)):
        assert candidate.token_ids in items


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_nothing_legal_at_the_first_token_fails_the_group_alone(strategy: Strategy) -> None:
    table = items_table([(1, 2)], VOCAB)
    engine = toy_engine()
    bad = request("bad", [4, 5], strategy, max_tokens=8, min_tokens=3, constraint=ITEM)
    good = request("good", [4, 5], strategy, max_tokens=8)
    engine.submit(held(bad, items_table([(1,)], VOCAB)))
    engine.submit(good)
    engine.submit(held(dataclasses.replace(bad, request_id="later"), table))
    last = run(engine)
    for name, at in (("bad", 1), ("later", 2)):
        event = last[name]
        assert isinstance(event, GroupFailed)
        assert f"no legal token at generated token {at}, under the constraint" in str(event.error)
        assert event.error.field == "constraint"
    assert isinstance(last["good"], GroupFinished)
    assert last["good"].candidates == decode_alone(good)


def events_of(what: DecodeRequest, table: Table) -> list[GroupEvent]:
    """All that a request with an engine to itself is told."""
    engine = toy_engine()
    events: list[GroupEvent] = []
    engine.submit(dataclasses.replace(held(what, table), stream=True))
    while engine.has_work:
        events += engine.step()
        engine.scheduler.check()
    assert_idle(engine)
    return events


DEAD_END = 4


def with_dead_ends(form: Form) -> Table:
    """Token 4 leads to where nothing follows."""
    moves = np.full((2, VOCAB), NOTHING, np.int64)
    moves[0, [1, 2, 3, DEAD_END]] = [0, 0, 0, 1]
    return Table(moves, form)


@pytest.mark.parametrize("form", ["lists", "bits"])
@pytest.mark.parametrize("penalty", [0.0, 1e-9])
def test_a_sample_that_nothing_follows_ends_alone(form: Form, penalty: float) -> None:
    """A penalty of next to nothing takes the way of rows that processors change."""
    table, given = with_dead_ends(form), {"max_tokens": 4, "repetition_penalty": 1.0 + penalty}
    *events, last = events_of(request("a", [4, 5], Sample(n=12, seed=3), **given), table)
    assert isinstance(last, GroupFinished)
    stuck = [event.candidate for event in events if isinstance(event, CandidateStuck)]
    assert 2 < len(stuck) < 10
    assert sorted([*stuck, *(c.index for c in last.candidates)]) == list(range(12))
    assert last.exhausted
    for candidate in last.candidates:
        assert len(candidate.token_ids) == 4
        assert DEAD_END not in candidate.token_ids[:3]
    for event in events:
        if isinstance(event, CandidateStuck):
            assert isinstance(event.error, NoLegalTokenError)
            assert event.error.field == "constraint"
    *_, fewer = events_of(request("a", [4, 5], Sample(n=6, seed=3), **given), table)
    assert isinstance(fewer, GroupFinished)
    assert fewer.candidates == tuple(c for c in last.candidates if c.index < 6)


def test_the_best_of_samples_is_among_those_that_finished() -> None:
    table = with_dead_ends("lists")
    every = decode_alone(held(request("a", [4, 5], Sample(n=12, seed=3), max_tokens=4), table))
    for n, enough in ((2, None), (2, 3), (12, None)):
        best = BestOf(best_of=12, n=n, seed=3, first_finished=enough)
        *_, last = events_of(request("a", [4, 5], best, max_tokens=4), table)
        assert isinstance(last, GroupFinished)
        ranked = sorted(every, key=lambda c: -c.cumulative_logprob)[:n]
        assert [c.index for c in last.candidates] == [c.index for c in ranked]
        assert last.exhausted is (n == 12)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_where_nothing_is_left_the_request_fails(strategy: Strategy) -> None:
    moves = np.full((2, VOCAB), NOTHING, np.int64)
    moves[0, [1, 2, DEAD_END]] = 1
    *_, last = events_of(request("a", [4, 5], strategy, max_tokens=4), Table(moves))
    assert isinstance(last, GroupFailed)
    assert isinstance(last.error, NoLegalTokenError)
    assert "at generated token 2, under the constraint" in str(last.error)


@pytest.mark.parametrize(("last", "reason"), [(9, "stop"), (EOS, "eos"), (7, "stop")])
def test_an_eos_id_that_completes_an_item_is_eos(last: int, reason: str) -> None:
    """Which counts for more than max_tokens, as every end does."""
    table = items_table([(1, last)], VOCAB)
    for strategy in STRATEGIES:
        asked = request("a", [4], strategy, eos=[EOS], max_tokens=2, stop_token_ids=(7,), constraint=ITEM)
        for candidate in decode_alone(held(asked, table)):
            assert (candidate.token_ids, candidate.finish_reason) == ((1, last), reason)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_a_cancelled_group_keeps_to_it_and_is_not_exhausted(strategy: Strategy) -> None:
    table = random_table(5, VOCAB)
    engine = toy_engine()
    engine.submit(held(request("a", [4, 5], strategy, max_tokens=12), table))
    for _ in range(4):
        engine.step()
    [event] = engine.cancel("a")
    assert isinstance(event, GroupFailed)
    assert event.candidates
    assert all(table.accepts(c.token_ids) and len(c.token_ids) == 4 for c in event.candidates)
