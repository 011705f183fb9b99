"""A streamed beam's text, from the toy model's tokens: half characters, stop strings, and what it costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from forkdecode.requests.assembly import Assembler
from forkdecode.results import BeamUpdate, Committed, Event, Finished
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.text.detokenizer import Detokenizer
from forkdecode.text.stop import StopAutomaton
from forkdecode.text.token_bytes import TokenBytes
from forkdecode.types import Beam
from tests.scheduler.engines import VOCAB, request, toy_engine

PIECES = ["a", "b", "ab", "|", "||", " x", "é", "世"]
HALVES = [part for char in "é世👩" for part in (char.encode()[:1], char.encode()[1:])]
TOKENS = TokenBytes.build([*(piece.encode() for piece in PIECES), *HALVES, *[b"c"] * (VOCAB - 14)])


def beam(strategy: Beam, stop: Sequence[str] = (), **options: Any) -> DecodeRequest:
    what = request("x", [3, 4, 5], strategy, eos=[2], **options)
    return dataclasses.replace(what, stream=True, automaton=StopAutomaton(stop, TOKENS) if stop else None)


def events_of(what: DecodeRequest, sharpness: float = 2.0) -> list[Event]:
    engine, assembler = toy_engine(), Assembler(what, TOKENS)
    engine._runner.sharpness = sharpness
    engine.submit(what)
    found: list[Event] = []
    while engine.has_work:
        for event in engine.step():
            found += assembler.events(event)
    return found


@settings(max_examples=150)
@given(
    width=st.integers(1, 5),
    returned=st.integers(1, 5),
    early=st.sampled_from([True, False, "never"]),
    stop=st.lists(st.sampled_from(["|", "||", "ab", "世", "b|", "cc"]), max_size=3),
    include=st.booleans(),
    min_tokens=st.integers(0, 12),
    max_tokens=st.integers(12, 40),
    every=st.integers(1, 3),
    shown=st.integers(0, 3),
    sharpness=st.sampled_from([1.0, 3.0, 6.0]),
)
def test_texts_are_those_of_the_whole_token_lists(
    width: int,
    returned: int,
    early: Any,
    stop: list[str],
    include: bool,
    min_tokens: int,
    max_tokens: int,
    every: int,
    shown: int,
    sharpness: float,
) -> None:
    strategy = Beam(width, num_return_sequences=min(width, returned), early_stopping=early)
    what = beam(
        strategy,
        stop,
        include_stop=include,
        min_tokens=min_tokens,
        max_tokens=max_tokens,
        update_every=every,
        update_beams=shown,
    )
    *events, last = events_of(what, sharpness)
    tokens: tuple[int, ...] = ()
    text = ""

    def certain(ids: tuple[int, ...]) -> str:
        whole = Detokenizer(TOKENS, [3], stop=what.automaton, ending_ids={2}, include_stop=include)
        return whole.push(ids)

    for event in events:
        if isinstance(event, Committed):
            tokens, text = tokens + event.token_ids, text + event.text
            assert text == certain(tokens)
        elif isinstance(event, BeamUpdate):
            for row in event.beams:
                assert text + row.text == certain(tokens + row.token_ids)
    assert isinstance(last, Finished)
    for candidate in last.result.candidates:
        assert candidate.token_ids[: len(tokens)] == tokens
        assert candidate.text.startswith(text)


@pytest.mark.parametrize("every", [1, 4])
def test_each_token_is_read_once_a_hypothesis(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """Not once an update: that would make a long stream quadratic."""
    read = 0
    push = Detokenizer.push

    def counted(self: Detokenizer, token_ids: Sequence[int]) -> str:
        nonlocal read
        read += len(token_ids)
        return push(self, token_ids)

    monkeypatch.setattr(Detokenizer, "push", counted)
    width, steps = 4, 200
    what = beam(
        Beam(width, num_return_sequences=1, early_stopping="never", length_penalty=5.0),
        max_tokens=steps,
        update_every=every,
        update_beams=0,
    )
    events = events_of(what)
    updates = [event for event in events if isinstance(event, BeamUpdate)]
    assert len(updates) == (steps - 1) // every
    rest = sum(len(row.token_ids) for update in updates for row in update.beams)
    assert rest > 10 * width * steps / every  # what reading all of it each time would come to
    assert read <= (width + 2) * steps
