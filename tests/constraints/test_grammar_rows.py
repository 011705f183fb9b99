"""The states of rows: forks against fresh matchers, old rows continued again, dead ends, openings."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.allowed import AllowedBits, ConstraintRows
from forkdecode.constraint_types import JsonSchema, Lark, Regex
from forkdecode.constraints import grammar
from forkdecode.constraints.grammar import Grammars
from forkdecode.constraints.grammar_text import GrammarSpec
from forkdecode.errors import GroupFailedError
from forkdecode.text.token_bytes import TokenBytes
from tests.constraints.grammar_bytes import (
    EOS,
    PIECES,
    SECOND_EOS,
    STRIPPING,
    TOKENS,
    VOCAB,
    after,
    grammars,
    ids_of,
    may,
    spelled,
    texts_of,
)

COMPILER = grammars()
SPECS: dict[str, GrammarSpec] = {
    "regex": Regex(r"([ab]{1,4}c? |é+)*(x|[0-9]+)"),
    "schema": JsonSchema({"type": "array", "items": {"enum": ["ab", "é", 7, None]}, "minItems": 1}),
    "lark": Lark('start: "a" x "b" | "é" start\nx: "c" x | "(" start ")" | D\nD: /[0-9]{1,3}/'),
    "gbnf": Lark('root ::= "a" root "b" | [c-e\\u00e9]+', "gbnf"),
}
ENDS = {EOS, SECOND_EOS}


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=25)
@given(data=st.data())
def test_forked_rows_are_those_of_matchers_that_read_each_row_alone(name: str, data: st.DataObject) -> None:
    constraint = COMPILER.of(SPECS[name])
    rows, paths = constraint.rows(), [list[int]()]
    history: list[tuple[ConstraintRows, list[list[int]]]] = []
    for _ in range(data.draw(st.integers(1, 6), "steps")):
        open_rows = [r for r in range(len(paths)) if ids_of(rows, r) - ENDS]
        if not open_rows:
            break
        history.append((rows, paths))
        parents = data.draw(st.lists(st.sampled_from(open_rows), min_size=1, max_size=12), "parents")
        tokens = [data.draw(st.sampled_from(sorted(ids_of(rows, r) - ENDS)), "token") for r in parents]
        rows = rows.next(np.array(parents, np.int32), np.array(tokens, np.int64))
        paths = [[*paths[p], t] for p, t in zip(parents, tokens, strict=True)]
    # The states of before still are what they were, and may be continued again.
    back, back_paths = data.draw(st.sampled_from([*history, (rows, paths)]), "back")
    again = [r for r in range(len(back_paths)) if ids_of(back, r) - ENDS]
    if again:
        tokens = [min(ids_of(back, r) - ENDS) for r in again]
        history.append((rows, paths))
        rows = back.next(np.array(again, np.int32), np.array(tokens, np.int64))
        paths = [[*back_paths[r], t] for r, t in zip(again, tokens, strict=True)]
    for state, of in [*history, (rows, paths)]:
        for r, path in enumerate(of):
            assert ids_of(state, r) == ids_of(after(constraint, path)), texts_of(path)


@given(st.lists(st.sampled_from(["a", "b", "ab", "abc", "1", "é", " ", "x"]), max_size=8))
def test_what_is_allowed_is_what_the_regular_expression_says(parts: list[str]) -> None:
    """Against Python's own: a text that matches may be spelled in any way, and may end; no other may."""
    pattern = r"(ab?|b c|é1|x{2}){0,3}"
    constraint = COMPILER.of(Regex(pattern))
    ids, rows = spelled("".join(parts)), constraint.rows()
    allowed = True
    for token in ids:
        allowed = token in ids_of(rows)
        if not allowed:
            break
        rows = rows.next(np.zeros(1, np.int32), np.array([token]))
    matches = re.fullmatch(pattern, "".join(parts)) is not None
    assert (allowed and ids_of(rows) >= ENDS) == matches


def test_every_spelling_of_a_text_is_allowed() -> None:
    constraint = COMPILER.of(Regex("abc"))
    for way in ([97, 98, 99], [256, 99], [257], [97, 258]):
        assert ids_of(after(constraint, way)) == ENDS


def test_a_character_may_be_split_among_tokens() -> None:
    constraint = COMPILER.of(Regex("[é-ü]{2}"))
    first, second = "é".encode()
    assert ids_of(constraint.rows()) == {first, 261}
    assert second in ids_of(after(constraint, [first]))
    assert not ids_of(after(constraint, [first])) & ENDS
    assert ids_of(after(constraint, [first, second, 261])) == ENDS


def test_a_row_in_a_dead_end_may_continue_with_nothing_and_the_others_go_on() -> None:
    constraint = COMPILER.of(Lark('start: "a" NEVER | "bc"\nNEVER: /x+/ & /y+/'))
    rows = constraint.rows().next(np.zeros(2, np.int32), np.array([ord("a"), ord("b")]))
    assert [ids_of(rows, r) for r in (0, 1)] == [set(), {ord("c")}]
    assert ids_of(rows.next(np.ones(1, np.int32), np.array([ord("c")]))) == ENDS


def test_a_token_that_is_not_allowed_fails_the_rows_and_what_follows_them() -> None:
    rows = COMPILER.of(Regex("abc")).rows()
    wrong = rows.next(np.zeros(2, np.int32), np.array([97, 120]))
    later = wrong.next(np.zeros(1, np.int32), np.array([98]))
    for failed in (wrong, later, wrong):
        with pytest.raises(GroupFailedError, match="doesn't satisfy the grammar") as error:
            failed.allowed().get()
        assert "<" not in str(error.value)
    assert ids_of(rows.next(np.zeros(1, np.int32), np.array([97]))) == {98, 258}


def test_a_matcher_that_needs_too_much_fails_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(grammar.LIMITS, "step_max_items", 500)
    rows = grammars().of(Lark('start: "b" "a"+ ' + "A? " * 300 + '\nA: "x" | "y"')).rows()
    for token in b"baaa":
        rows = rows.next(np.zeros(1, np.int32), np.array([token]))
    with pytest.raises(GroupFailedError, match=r"^constraint: .*Too many items") as error:
        rows.allowed().get()
    assert "<" not in str(error.value)


def test_many_rows_are_what_one_would_be() -> None:
    constraint = COMPILER.of(SPECS["schema"])
    start = after(constraint, spelled("["))
    tokens = np.array([34, 32, 55, 110, 9] * 8, np.int64)
    many = start.next(np.zeros(len(tokens), np.int32), tokens)
    for r, token in enumerate(tokens.tolist()):
        assert ids_of(many, r) == ids_of(after(constraint, [91, token]))


def test_masks_are_as_wide_as_the_model_not_the_tokenizer() -> None:
    """A model with more rows of its embedding than tokens, and a tokenizer with more tokens than rows."""
    for size in (VOCAB + 100, VOCAB - 1):
        compiler = Grammars(TOKENS if size < VOCAB else _padded(size), size, (EOS,))
        allowed = compiler.of(Regex("(?s:.)*")).rows().allowed().get()
        assert isinstance(allowed, AllowedBits)
        assert allowed.words.shape == (1, -(-size // 32))
        assert not may(allowed)[0, VOCAB - 2 :].any()


def _padded(size: int) -> TokenBytes:
    return TokenBytes.build([*PIECES, *[b""] * (size - VOCAB)])


def test_an_end_that_has_a_text_is_no_text() -> None:
    """Some models end by a token that their tokenizer holds to be an ordinary one."""
    compiler = Grammars(TOKENS, VOCAB, (ord("\n"), EOS))
    assert ids_of(compiler.of(Regex("a\n?")).rows()) == {97}
    assert ids_of(after(compiler.of(Regex("a\n?")), [97])) == {ord("\n"), EOS}


@given(st.lists(st.sampled_from([" ", " a", "ab", "a", "b", "é"]), max_size=4), st.data())
def test_a_first_space_that_is_dropped_is_not_part_of_the_text(parts: list[str], data: st.DataObject) -> None:
    """As the detokenizer has it: "_Hello" is "Hello" where a text begins."""
    pattern = r" ?(a|é)( ?[ab])*"
    constraint = _STRIPPING.of(Regex(pattern), opening=True)
    ways = [[i for i, piece in enumerate(PIECES) if piece == part.encode()] for part in parts]
    ids = [data.draw(st.sampled_from(way)) for way in ways]
    rows, allowed = constraint.rows(), True
    for token in ids:
        allowed = token in ids_of(rows)
        if not allowed:
            break
        rows = rows.next(np.zeros(1, np.int32), np.array([token]))
    text = texts_of(ids).decode().removeprefix(" ")
    assert (allowed and ids_of(rows) >= ENDS) == (re.fullmatch(pattern, text) is not None)
    again = _STRIPPING.of(Regex(pattern), opening=False)
    assert 259 in ids_of(again.rows())


_STRIPPING = Grammars(STRIPPING, VOCAB, (EOS, SECOND_EOS))
