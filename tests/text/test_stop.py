"""The stop automaton against plain searching."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.errors import InvalidRequestError
from forkdecode.text.stop import MAX_KEPT_STATES, ROOT, StopAutomaton
from forkdecode.text.token_bytes import TokenBytes

SMALL = st.binary(max_size=5).map(lambda b: bytes(97 + x % 3 for x in b))
"""Texts over three letters, so that patterns overlap."""
TOKENS = st.lists(SMALL, min_size=1, max_size=8)
STOPS = st.lists(SMALL.filter(bool), min_size=1, max_size=4)


def ends_in(text: bytes, stops: list[bytes], new: int) -> bool:
    """Whether any stop string ends within the last `new` bytes of `text`."""
    return any(text[:end].endswith(tuple(stops)) for end in range(len(text) - new + 1, len(text) + 1))


@given(TOKENS, STOPS, st.data())
@settings(max_examples=300, deadline=None)
def test_finds_a_match_in_the_token_that_completes_it(
    pieces: list[bytes], stops: list[bytes], data: st.DataObject
) -> None:
    automaton = StopAutomaton(stops, TokenBytes.build(pieces))
    ids = st.integers(0, len(pieces) - 1)
    rows = data.draw(st.lists(st.lists(ids, min_size=6, max_size=6), min_size=1, max_size=5))
    texts, states = [b""] * len(rows), np.zeros(len(rows), np.int64)
    for step in range(6):
        tokens = np.array([row[step] for row in rows])
        states, hits = automaton.advance(states, tokens)
        texts = [text + pieces[t] for text, t in zip(texts, tokens, strict=True)]
        assert hits.tolist() == [
            ends_in(text, stops, len(pieces[t])) for text, t in zip(texts, tokens, strict=True)
        ]
        for text, state in zip(texts, states.tolist(), strict=True):
            depth = max(n for s in stops for n in range(len(s) + 1) if text.endswith(s[:n]))
            assert automaton.depth(state) == depth
            assert automaton.match_length(state) == max(len(s) if text.endswith(s) else 0 for s in stops)


@given(TOKENS, STOPS)
@settings(max_examples=200, deadline=None)
def test_the_finish_table_is_what_advance_says_of_every_token(
    pieces: list[bytes], stops: list[bytes]
) -> None:
    automaton = StopAutomaton(stops, TokenBytes.build(pieces))
    everything = np.arange(len(pieces))
    for state in range(automaton.num_states):
        mask = automaton.finish_table(np.array([state, ROOT, state]))
        assert mask.table.shape[1] == len(pieces)
        _, hits = automaton.advance(np.full(len(pieces), state), everything)
        assert (mask.table[mask.state[0]] == hits).all()
        assert mask.state[0] == mask.state[2]


@given(TOKENS, STOPS, st.integers(0, 30), st.data())
@settings(max_examples=100, deadline=None)
def test_a_token_goes_where_its_bytes_go(
    pieces: list[bytes], stops: list[bytes], state: int, data: st.DataObject
) -> None:
    automaton = StopAutomaton(stops, TokenBytes.build(pieces))
    state %= automaton.num_states
    token = data.draw(st.integers(0, len(pieces) - 1))
    after, _ = automaton.advance(np.array([state]), np.array([token]))
    for byte in pieces[token]:
        state = automaton.step(state, byte)
    assert after.tolist() == [state]


def test_text_is_matched_as_utf8_across_and_within_tokens() -> None:
    pieces = [b"na\xc3", b"\xaf", b"ve", b"xx\n\nyy", b""]
    automaton = StopAutomaton(["ïve", "\n\n"], TokenBytes.build(pieces))
    state = np.zeros(1, np.int64)
    hits = []
    for token in (0, 1, 4, 2, 3):
        state, hit = automaton.advance(state, np.array([token]))
        hits.append(bool(hit[0]))
    assert hits == [False, False, False, True, True]


def test_a_token_without_bytes_repeats_no_match() -> None:
    automaton = StopAutomaton(["a"], TokenBytes.build([b"a", b""]))
    state, hit = automaton.advance(np.zeros(1, np.int64), np.array([0]))
    assert hit.tolist() == [True]
    again, hit = automaton.advance(state, np.array([1]))
    assert hit.tolist() == [False]
    assert again.tolist() == state.tolist()


def test_no_rows() -> None:
    automaton = StopAutomaton(["a"], TokenBytes.build([b"a", b""]))
    none = np.empty(0, np.int64)
    states, hits = automaton.advance(none, none)
    assert len(states) == len(hits) == len(automaton.finish_table(none).state) == 0


def test_a_mask_handed_out_stays_as_it_is_when_the_table_starts_anew() -> None:
    stop = bytes(i % 250 + 1 for i in range(3 * MAX_KEPT_STATES))
    pieces = [stop[i : i + 1] for i in range(8)]
    automaton = StopAutomaton([stop], TokenBytes.build([*pieces, stop]))
    first = automaton.finish_table(np.array([ROOT, 1]))
    before = first.table.copy()
    for state in range(2, automaton.num_states):
        mask = automaton.finish_table(np.array([state]))
        assert len(mask.table) <= MAX_KEPT_STATES
    assert (first.table == before).all()
    assert automaton.finish_table(np.array([ROOT])).table[0].tolist() == [False] * 8 + [True]
    last = automaton.finish_table(np.arange(automaton.num_states))
    assert len(last.table) == automaton.num_states


def test_an_empty_stop_string_is_refused() -> None:
    for stops in ([], [""], ["a", ""]):
        with pytest.raises(InvalidRequestError, match="stop"):
            StopAutomaton(stops, TokenBytes.build([b"a"]))
