"""The table's bytes are what the tokenizer decodes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.text.special_tokens import special_ids, special_names
from forkdecode.text.token_bytes import TokenBytes, token_bytes
from tests.text.tokenizers_for_tests import CORPUS, byte_level, decode, metaspace, sentencepiece, wordpiece


def text_of(table: TokenBytes, ids: list[int]) -> str:
    return b"".join(table.of(i) for i in ids).decode(errors="replace")


BYTE_LEVEL = token_bytes(byte_level())


@given(st.lists(st.integers(0, BYTE_LEVEL.vocab_size - 1), max_size=30))
@settings(max_examples=200, deadline=None)
def test_byte_level_whatever_the_tokens(ids: list[int]) -> None:
    assert text_of(BYTE_LEVEL, ids) == decode(byte_level(), ids)


def test_special_tokens_have_no_bytes_and_added_text_has_its_own() -> None:
    vocab = byte_level().get_vocab()
    assert BYTE_LEVEL.of(vocab["<|end|>"]) == b""
    assert BYTE_LEVEL.of(vocab["added text é"]) == "added text é".encode()
    assert BYTE_LEVEL.of(vocab["plain"]) == b"plain"
    assert not BYTE_LEVEL.strips_first_space


@pytest.mark.parametrize("text", CORPUS[:3])
def test_sentencepiece_with_byte_fallback(text: str) -> None:
    tokenizer = sentencepiece()
    table = token_bytes(tokenizer)
    ids = tokenizer(text).input_ids
    vocab = tokenizer.get_vocab()
    assert any(table.of(i) == b" " for i in ids)
    assert text_of(table, ids) == " " + text
    assert decode(tokenizer, ids) == text
    assert table.of(vocab["<0xE4>"]) == b"\xe4"
    assert table.of(vocab["</s>"]) == b""
    assert table.strips_first_space
    assert not token_bytes(sentencepiece(first_space=False)).strips_first_space


def test_metaspace() -> None:
    tokenizer, ids = metaspace(), [2, 3, 4, 5, 6, 1, 7, 8]
    table = token_bytes(tokenizer)
    assert text_of(table, ids) == " the endof world, é世"
    assert text_of(table, ids).removeprefix(" ") == decode(tokenizer, ids)
    assert table.strips_first_space


def test_an_unknown_decoder_is_asked_what_each_token_adds() -> None:
    tokenizer = wordpiece()
    ids = [1, 2, 3, 4, 5, 6]
    assert "playing" in decode(tokenizer, ids)
    assert text_of(token_bytes(tokenizer), ids).lstrip(" ") == decode(tokenizer, ids)


class Slow:
    """A tokenizer written in Python, by the attributes its family has."""

    all_special_ids = (0,)

    def __init__(self, vocab: dict[Any, int], **attributes: object) -> None:
        self.vocab = vocab
        self.added_tokens_decoder = {0: SimpleNamespace(special=True)}
        self.__dict__.update(attributes)

    def get_vocab(self) -> dict[Any, int]:
        return self.vocab

    def decode(self, token_ids: object, **_: object) -> str:
        raise AssertionError("not needed")


@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        (Slow({"<s>": 0, "Ġa": 1, "Ã": 2}, byte_decoder={}), [b"", b" a", b"\xc3"]),
        (Slow({"<s>": 0, "▁a": 1, "<0xC3>": 2}, sp_model=object()), [b"", b" a", b"\xc3"]),
        (Slow({b"<s>": 0, b" a": 1, b"\xc3": 2}), [b"", b" a", b"\xc3"]),
    ],
)
def test_slow_tokenizers(slow: Any, expected: list[bytes]) -> None:
    table = token_bytes(slow)
    assert [table.of(i) for i in range(3)] == expected


def test_ids_beyond_the_vocabulary_have_no_bytes() -> None:
    table = token_bytes(byte_level(), vocab_size=BYTE_LEVEL.vocab_size + 9)
    assert table.vocab_size == BYTE_LEVEL.vocab_size + 9
    assert table.of(table.vocab_size - 1) == table.of(table.vocab_size) == table.of(-1) == b""
    assert np.array_equal(table.flat, BYTE_LEVEL.flat)


def test_an_empty_table_can_be_read() -> None:
    table = TokenBytes.build([b"", b""])
    assert table.of(0) == table.of(1) == b""
    assert table.flat[table.offsets].tolist() == [0, 0]


class MistralCommon:
    """transformers' tokenizer for mistral-common: a method that raises where others have a table, and names
    that parts of characters share."""

    all_special_ids = (0,)

    def __init__(self, pieces: list[bytes]) -> None:
        inner = SimpleNamespace(n_words=len(pieces), id_to_byte_piece=pieces.__getitem__)
        self.tokenizer = SimpleNamespace(instruct_tokenizer=SimpleNamespace(tokenizer=inner))

    def added_tokens_decoder(self) -> object:
        raise NotImplementedError

    def get_vocab(self) -> dict[str, int]:
        return {"<s>": 0, "\ufffd": 1, " a": 3}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return ["<s>" for _ in ids]


def test_mistral_common_tells_its_tokens_bytes() -> None:
    pieces = [b"", b"\xe4\xb8", b"\x96", b" a"]
    tokenizer: Any = MistralCommon(pieces)
    table = token_bytes(tokenizer, 5)
    assert [table.of(i) for i in range(5)] == [*pieces, b""]
    assert special_ids(tokenizer) == {0}
    assert special_names(tokenizer) == {0: "<s>"}
