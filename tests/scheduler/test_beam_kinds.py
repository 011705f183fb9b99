"""Beams of every kind through scheduler and selection, against the rules in plain lists."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.constraint_types import FromCatalogue
from forkdecode.scheduler.events import GroupFailed, GroupFinished
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.strategies.hypotheses import EOS, LIVE, REASONS, STOP
from forkdecode.text.stop import StopAutomaton
from forkdecode.text.token_bytes import TokenBytes
from forkdecode.types import Beam, Contrastive, CustomScorer, DiverseBeam, LengthNormalised
from tests.constraints.toy import Table, items_table, random_table
from tests.scheduler.engines import VOCAB, assert_idle, request, run, toy_engine
from tests.strategies.beam_reference import Path, beam_search, diverse_beam_search

LETTERS = [bytes([65 + i]) for i in range(VOCAB)]
PROMPT = (5, 6)
ITEM = FromCatalogue("items", end="item")


class ToyModel:
    """What the toy engine decodes, as its definitions say it: the request's options in plain words."""

    def __init__(self, what: DecodeRequest, stop: list[str], sharpness: float) -> None:
        self._what, self._stop = what, stop
        self._runner = toy_engine()._runner
        self._runner.sharpness = sharpness
        self._table: Any = what.constraint

    def row(self, path: Path) -> np.ndarray:
        logits = self._runner.logits(np.array([*PROMPT, *path])).astype(np.float64)
        values = (logits - np.log(np.exp(logits).sum())).astype(np.float32)
        if len(path) < self._what.options.min_tokens:
            values[[*self._what.eos_ids, *self._what.stop_ids]] = -np.inf
        for token in range(VOCAB):
            if self._table is not None and not self._table.accepts((*path, token)):
                values[token] = -np.inf
        return values

    def ends(self, path: Path) -> int:
        if path[-1] in self._what.eos_ids:
            return EOS
        if path[-1] in self._what.stop_ids:
            return STOP
        text = b"".join(LETTERS[token] for token in path)
        if len(path) >= self._what.options.min_tokens and any(text.endswith(s.encode()) for s in self._stop):
            return STOP
        complete = self._table is not None and self._state(path) in self._table.ends
        return STOP if complete else LIVE

    def _state(self, path: Path) -> int:
        state = 0
        for token in path:
            state = int(self._table.moves[state, token]) if state >= 0 else -1
        return state


@st.composite
def strategies(draw: st.DrawFn) -> Beam | DiverseBeam:
    early: Any = draw(st.sampled_from([True, False, "never"]))
    scorer = draw(st.sampled_from([None, None, LengthNormalised(), Contrastive((-2.0, -3.0, -6.0))]))
    if draw(st.booleans()):
        groups = draw(st.integers(1, 4))
        width = draw(st.integers(1 if groups > 1 else 2, 4))  # a beam of one is greedy: logits, renormalised
        penalty = draw(st.sampled_from([0.3, 1.0, 50.0]))
        return DiverseBeam(groups * width, groups, penalty, early_stopping=early, scorer=scorer)
    widths = draw(st.sampled_from([(), (1, 6), (6, 2), (2, 6, 4)]))
    sibling = draw(st.sampled_from([0.0, 0.4, 2.0]))
    return Beam(6, early_stopping=early, widths=widths, sibling_penalty=sibling, scorer=scorer)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Table | None, bool]:
    """A constraint, and whether its states end candidates."""
    kind = draw(st.sampled_from(["none", "items", "random", "random with ends"]))
    if kind == "none":
        return None, False
    seed = draw(st.integers(0, 99))
    if kind == "items":
        rng = np.random.default_rng(seed)
        count = draw(st.integers(1, 60))
        return items_table([tuple(map(int, rng.integers(0, 9, 3))) for _ in range(count)], VOCAB), True
    if kind == "random":
        return random_table(seed, VOCAB, degree=draw(st.integers(1, 6))), False
    return random_table(seed, VOCAB, degree=12, ends=frozenset({4, 5})), True


@settings(max_examples=60, deadline=None)
@given(
    strategy=strategies(),
    constraint=tables(),
    eos=st.sampled_from([[], [1], [1, 2]]),
    stop=st.lists(st.sampled_from(["A", "C", "D", "BC", "KL", "M"]), max_size=3),
    max_tokens=st.integers(1, 7),
    min_tokens=st.integers(0, 3),
    sharpness=st.sampled_from([0.7, 2.0]),
)
def test_equals_the_plain_rule(
    strategy: Beam | DiverseBeam,
    constraint: tuple[Table | None, bool],
    eos: list[int],
    stop: list[str],
    max_tokens: int,
    min_tokens: int,
    sharpness: float,
) -> None:
    table, ending = constraint
    if ending:  # what an item's end and min_tokens come to together is told elsewhere
        min_tokens = 0
    options: dict[str, Any] = {"constraint": ITEM} if ending else {}
    what = request(
        "a", PROMPT, strategy, eos, max_tokens=max_tokens, min_tokens=min(min_tokens, max_tokens), **options
    )
    automaton = StopAutomaton(stop, TokenBytes.build(LETTERS)) if stop else None
    what = dataclasses.replace(what, constraint=table, automaton=automaton)
    engine = toy_engine()
    engine._runner.sharpness = sharpness
    engine.submit(what)
    event = run(engine)["a"]
    model = ToyModel(what, stop, sharpness)
    if isinstance(strategy, DiverseBeam) and strategy.groups > 1:
        wanted = diverse_beam_search(model, strategy, max_tokens)
    elif isinstance(strategy, DiverseBeam):
        ends = {name: getattr(strategy, name) for name in ("length_penalty", "early_stopping", "scorer")}
        wanted = beam_search(model, Beam(strategy.width, **ends), max_tokens)
    else:
        wanted = beam_search(model, strategy, max_tokens)
    assert_idle(engine)
    if isinstance(event, GroupFailed):
        assert not wanted
        assert "no legal token" in str(event.error)
        return
    assert isinstance(event, GroupFinished)
    found = [(c.token_ids, c.finish_reason) for c in event.candidates]
    assert found == [(path, REASONS[reason]) for path, _, reason in wanted]
    assert [c.score for c in event.candidates] == pytest.approx([h[1] for h in wanted], abs=1e-4)


@pytest.mark.parametrize("strategy", [Beam(3), Beam(1), DiverseBeam(4, 2)], ids=["beam", "greedy", "diverse"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_scorer_at_fault_fails_its_request_alone(strategy: Any, stream: bool) -> None:
    def broken(sums: Any, length: int, data: Any) -> Any:
        raise ZeroDivisionError("of no use")

    engine = toy_engine()
    bad = dataclasses.replace(strategy, scorer=CustomScorer(broken))
    asked = request("bad", PROMPT, bad, [1], max_tokens=9)
    engine.submit(dataclasses.replace(asked, stream=stream))
    good = dataclasses.replace(strategy, scorer=CustomScorer(lambda sums, length, data: sums / length))
    engine.submit(request("good", PROMPT, good, [1], max_tokens=9))
    engine.submit(request("plain", PROMPT, strategy, [1], max_tokens=9))
    ended = run(engine)
    failed = ended["bad"]
    assert isinstance(failed, GroupFailed)
    assert failed.error.field == "scorer"
    assert "ZeroDivisionError: of no use" in str(failed.error)
    for one, other in zip(ended["good"].candidates, ended["plain"].candidates, strict=True):  # type: ignore[union-attr]
        assert one.token_ids == other.token_ids
        assert one.score == pytest.approx(other.score, rel=1e-6)
    assert_idle(engine)


def test_a_cancelled_beam_whose_scorer_fails_still_tells_what_it_has() -> None:
    calls: list[int] = []

    def late(sums: Any, length: int, data: Any) -> Any:
        calls.append(length)
        raise ValueError("too late")

    engine = toy_engine()
    engine.submit(request("a", PROMPT, Beam(3, scorer=CustomScorer(late)), max_tokens=30))
    for _ in range(4):
        engine.step()
    assert not calls  # nothing has ended
    [event] = engine.cancel("a")
    assert isinstance(event, GroupFailed)
    assert [c.finish_reason for c in event.candidates] == ["cancelled"] * 3
    assert_idle(engine)
