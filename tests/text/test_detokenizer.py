"""Incremental text: equal to the whole, whole characters, stop strings held back and cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.results import FinishReason
from forkdecode.text.detokenizer import Detokenizer
from forkdecode.text.stop import StopAutomaton
from forkdecode.text.token_bytes import TokenBytes, token_bytes
from tests.text.tokenizers_for_tests import CORPUS, byte_level, decode, sentencepiece

BYTE_LEVEL = token_bytes(byte_level())
SENTENCEPIECE = token_bytes(sentencepiece())


def detokenize(
    ids: Sequence[int], reason: FinishReason, tokens: TokenBytes, prompt: Sequence[int] = (), **rules: Any
) -> str:
    """The whole text at once."""
    detokenizer = Detokenizer(tokens, prompt, **rules)
    return detokenizer.push(ids) + detokenizer.finish(reason)


@given(st.lists(st.integers(0, BYTE_LEVEL.vocab_size - 1), max_size=40), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_pushes_are_the_whole_text_in_pieces(ids: list[int], chunk: int) -> None:
    detokenizer = Detokenizer(BYTE_LEVEL)
    parts = [detokenizer.push(ids[i : i + chunk]) for i in range(0, len(ids), chunk)]
    assert "".join(parts) + detokenizer.finish("length") == decode(byte_level(), ids)


@given(st.text(max_size=30), st.integers(0, 30))
@settings(max_examples=200, deadline=None)
def test_never_half_a_character_nor_the_prompt(text: str, cut: int) -> None:
    ids = byte_level()(text).input_ids
    prompt, rest = ids[:cut], ids[cut:]
    before = b"".join(BYTE_LEVEL.of(i) for i in prompt)
    after = b"".join(BYTE_LEVEL.of(i) for i in rest)
    detokenizer = Detokenizer(BYTE_LEVEL, prompt)
    told = ""
    for token in rest:
        told += detokenizer.push([token])
        # Where the prompt ends inside a character, its other half alone is no text.
        if before.decode(errors="ignore").encode() == before:
            assert text.encode() == before + after
            assert after.decode().startswith(told)
    assert told + detokenizer.finish("length") == after.decode(errors="replace")


@pytest.mark.parametrize("text", CORPUS[:3])
def test_sentencepiece_continues_the_prompt(text: str) -> None:
    tokenizer = sentencepiece()
    ids = tokenizer("the end").input_ids + tokenizer(text).input_ids
    for cut in range(1, len(ids)):
        detokenizer = Detokenizer(SENTENCEPIECE, ids[:cut])
        told = "".join(detokenizer.push([i]) for i in ids[cut:])
        told += detokenizer.finish("length")
        if (whole := decode(tokenizer, ids[:cut])) and "\ufffd" not in whole:
            assert whole + told == decode(tokenizer, ids)


def test_a_text_from_nothing_begins_without_the_tokenizers_space() -> None:
    tokenizer = sentencepiece()
    ids = tokenizer("the end").input_ids
    bos = tokenizer.get_vocab()["<s>"]
    assert detokenize(ids, "length", SENTENCEPIECE, [bos]) == "the end"
    assert detokenize(ids, "length", SENTENCEPIECE, [bos, ids[-1]]) == " the end"


def test_a_half_character_shows_at_the_very_end_only() -> None:
    table = TokenBytes.build([b"a", b"\xf0\x9f", b"\x8e\x89"])
    detokenizer = Detokenizer(table)
    assert [detokenizer.push([i]) for i in (0, 1, 2, 1)] == ["a", "", "🎉", ""]
    assert detokenizer.finish("length") == "\ufffd"


PIECES = [b"x", b"<", b"st", b"op", b">", b"x<stop>y", b"\n", b"<e", b"", b"\xc3", b"\xa9"]
TABLE = TokenBytes.build(PIECES)
STOP = StopAutomaton(["<stop>", "\n\n"], TABLE)


def told(*tokens: int, stop: StopAutomaton | None = STOP, ending: tuple[int, ...] = ()) -> list[str]:
    detokenizer = Detokenizer(TABLE, stop=stop, ending_ids=ending)
    return [detokenizer.push([t]) for t in tokens]


def whole(reason: FinishReason, *tokens: int, include: bool = False, ending: tuple[int, ...] = ()) -> str:
    pieces = Detokenizer(TABLE, stop=STOP, ending_ids=ending, include_stop=include)
    text = "".join(pieces.push([t]) for t in tokens) + pieces.finish(reason)
    at_once = detokenize(tokens, reason, TABLE, stop=STOP, ending_ids=ending, include_stop=include)
    assert text == at_once
    return text


def test_a_possible_beginning_is_held_back_until_decided() -> None:
    assert told(0, 1, 2, 0) == ["x", "", "", "<stx"]
    assert told(1, 1, 2) == ["", "<", ""]
    assert told(0, 6, 0) == ["x", "", "\nx"]
    assert told(0, 1, stop=None) == ["x", "<"]


def test_a_stop_string_is_cut_or_kept_to_its_end() -> None:
    assert whole("stop", 0, 1, 2, 3, 4) == "x"
    assert whole("stop", 0, 1, 2, 3, 4, include=True) == "x<stop>"
    assert whole("stop", 0, 5) == "xx"
    assert whole("stop", 0, 5, include=True) == "xx<stop>"
    assert whole("stop", 6, 6) == ""


def test_one_that_comes_too_early_is_text() -> None:
    # What min_tokens defers does not end anything, and is not cut when a later one does.
    assert told(5, 0) == ["x", "<stop>yx"]
    assert whole("stop", 5, 0, 5) == "x<stop>yxx"
    assert whole("length", 5, 0) == "x<stop>yx"


def test_a_beginning_that_comes_to_nothing_is_text_at_the_end() -> None:
    for reason in ("length", "cancelled"):
        assert whole(reason, 0, 1, 2) == "x<st"
    assert whole("eos", 0, 1, 2, 8, ending=(8,)) == "x<st"


def test_the_text_of_a_token_that_ends_it_is_never_told() -> None:
    assert told(0, 6, stop=None, ending=(6,)) == ["x", ""]
    assert whole("stop", 0, 6, ending=(6,)) == "x"
    assert whole("stop", 0, 6, include=True, ending=(6,)) == "x"
    assert whole("eos", 0, 1, 0, ending=(0,)) == "x<"
    assert whole("length", 0, 6, ending=(6,)) == "x\n"
    assert told(6, 0, stop=None, ending=(6,)) == ["", "\nx"]


def test_a_token_that_ends_by_no_id_is_text() -> None:
    """The last of an item, with what it may have begun: a stop string, a character."""
    assert whole("stop", 0, 1, ending=(6,)) == "x<"
    assert whole("stop", 0, 9, ending=(6,)) == "x\ufffd"


def test_characters_and_stop_strings_wait_together() -> None:
    assert told(9, 10, 1, 9, 10) == ["", "é", "", "<", "é"]


STREAM = st.lists(st.integers(0, len(PIECES) - 1), max_size=14)


@given(STREAM, st.booleans())
@settings(max_examples=400, deadline=None)
def test_ending_where_the_automaton_hits_is_cutting_the_text_there(tokens: list[int], include: bool) -> None:
    text = b""
    for number, token in enumerate(tokens):
        text += PIECES[token]
        ends = [(text.index(s) + len(s), s) for s in (b"<stop>", b"\n\n") if s in text]
        if ends:
            end, stop = min(ends)
            kept = text[: end if include else end - len(stop)].decode(errors="replace")
            assert whole("stop", *tokens[: number + 1], include=include) == kept
            return
    assert whole("length", *tokens) == text.decode(errors="replace")


@given(
    st.lists(st.integers(0, BYTE_LEVEL.vocab_size - 1), max_size=12),
    st.lists(st.lists(st.integers(0, BYTE_LEVEL.vocab_size - 1), max_size=8), max_size=4),
    st.lists(st.sampled_from(["e", "th", "the ", "é", "\n"]), max_size=2, unique=True),
)
@settings(max_examples=200, deadline=None)
def test_copies_go_on_by_themselves(before: list[int], ways: list[list[int]], stops: list[str]) -> None:
    """However one of them goes on, it says what one says that has read all from the beginning."""
    rules: dict[str, Any] = {"stop": StopAutomaton(stops, BYTE_LEVEL) if stops else None}
    read = Detokenizer(BYTE_LEVEL, **rules)
    told = read.push(before)
    for way in ways:
        for reason in ("length", "stop", "eos"):
            twin, whole = read.copy(), Detokenizer(BYTE_LEVEL, **rules)
            assert told + twin.push(way) == whole.push(before + way)
            assert twin.finish(reason) == whole.finish(reason)
