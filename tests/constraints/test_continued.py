"""A constraint that goes on after tokens that are there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from forkdecode.allowed import Allowed, AllowedBits, AllowedLists
from forkdecode.constraint_types import Regex
from forkdecode.constraints.continued import Continued, Standing, continued, progress, standing
from forkdecode.constraints.grammar import Grammars
from forkdecode.text.token_bytes import token_bytes
from tests.llm.models import EOS_ID, TOKENIZER, VOCAB, ids

A, B, EOS = 40, 3, 0
"""A state that reads A or B goes on: 0 -A-> 1 -B-> 2, which accepts, and 2 -A-> 1."""
MOVES: tuple[dict[int, int], ...] = ({A: 1}, {B: 2}, {A: 1})
ACCEPTS = (False, False, True)


@dataclass(frozen=True)
class Source:
    """What is there at once."""

    allowed: Allowed

    def get(self) -> Allowed:
        return self.allowed


@dataclass(frozen=True)
class Rows:
    """The automaton above in each row; as: how it tells what is allowed."""

    states: tuple[int, ...]
    form: str

    def allowed(self) -> Source:
        assert self.states == self.states[:1], "one row alone"
        (state,) = self.states
        tokens = sorted(MOVES[state])
        if self.form == "bits":
            words = np.zeros((1, 2), np.uint32)
            for token in tokens + [EOS] * ACCEPTS[state]:
                words[0, token // 32] |= np.uint32(1 << token % 32)
            return Source(AllowedBits(words))
        padded = np.array([A, *tokens, A], np.int32)
        ends = np.array([False, *(ACCEPTS[MOVES[state][token]] for token in tokens), False])
        span = np.array([1]), np.array([1 + len(tokens)])
        if self.form == "ends":
            return Source(AllowedLists(padded, *span, ends=ends))
        also = np.array([ACCEPTS[state]])
        return Source(AllowedLists(padded, *span, also=also, also_ids=np.array([EOS])))

    def next(self, parents: NDArray[np.int32], tokens: NDArray[np.int64]) -> Rows:
        pairs = zip(parents.tolist(), tokens.tolist(), strict=True)
        return Rows(tuple(MOVES[self.states[parent]][token] for parent, token in pairs), self.form)


@dataclass(frozen=True)
class Automaton:
    """The constraint of it."""

    form: str = "bits"

    def rows(self) -> Rows:
        return Rows((0,), self.form)


def _ids(*tokens: int) -> NDArray[np.int64]:
    return np.array(tokens, np.int64)


def test_it_begins_after_the_tokens() -> None:
    assert Continued(Automaton(), _ids(A, B, A)).rows() == Rows((1,), "bits")
    assert Continued(Automaton(), _ids()).rows() == Automaton().rows()


def test_of_a_prompt_it_holds_for_the_end() -> None:
    constraint = Automaton()
    assert continued(constraint, _ids(9, 9, A, B), 2).rows() == Rows((2,), "bits")
    assert continued(constraint, _ids(9, 9), 2) is constraint
    assert continued(constraint, _ids(9, 9), None) is constraint


@pytest.mark.parametrize("form", ["bits", "lists"])
@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ((), "open"),
        ((A,), "open"),
        ((A, B, A), "open"),
        ((A, B, EOS), "complete"),
        ((A, B, EOS, A), "broken"),
        ((A, EOS), "broken"),
        ((B,), "broken"),
        ((A, B, 63), "broken"),
        ((A, B, 64), "broken"),
    ],
)
def test_what_tokens_make_of_it(form: str, tokens: tuple[int, ...], expected: Standing) -> None:
    assert standing(Automaton(form), _ids(*tokens), ends={EOS}) == expected


@pytest.mark.parametrize(
    ("tokens", "expected"), [((A,), "open"), ((A, B), "complete"), ((A, B, A), "broken")]
)
def test_an_entry_that_ends_completes_it(tokens: tuple[int, ...], expected: Standing) -> None:
    assert standing(Automaton("ends"), _ids(*tokens)) == expected


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [((B,), 0), ((A, EOS), 1), ((A, 63, A), 1), ((A, B, EOS, A), 3), ((A, B), 2), ((A, B, EOS), 3)],
)
def test_the_first_token_that_is_wrong_is_found(tokens: tuple[int, ...], expected: int) -> None:
    assert progress(Automaton("lists"), _ids(*tokens), ends={EOS})[1] == expected


def test_what_is_known_is_not_asked_for() -> None:
    """A and B have been seen to be allowed; under this form they would complete it."""
    assert standing(Automaton("ends"), _ids(A, B, A), known=2) == "open"


@pytest.mark.parametrize("opening", [False, True])
@pytest.mark.parametrize("text", ["", "a", "ab ab c", "ab ab cc", "abab"])
def test_a_grammar_that_reads_at_once_is_where_it_is_when_it_reads_one_by_one(
    text: str, opening: bool
) -> None:
    tokens = token_bytes(TOKENIZER, len(VOCAB))
    grammars = Grammars(tokens, len(VOCAB), (EOS_ID,))
    try:
        made = grammars.of(Regex("(ab ?)+c*"), opening=opening)
        at_once, rows = made.after(_ids(*ids(text))), made.rows()
        for token in ids(text):
            rows = rows.next(np.zeros(1, np.int32), _ids(token))
        for _ in range(2):  # rows that have given their matcher away read once more
            assert _words(at_once.get()) == _words(rows.get())
            for token in ids("c"):
                step = np.zeros(2, np.int32), _ids(token, token)
                if text.endswith(("b", "c")):
                    assert _words(at_once.next(*step).get()) == _words(rows.next(*step).get())
    finally:
        grammars.close()


def _words(allowed: Allowed) -> list[list[int]]:
    assert isinstance(allowed, AllowedBits)
    found: list[list[int]] = allowed.words.tolist()
    return found
