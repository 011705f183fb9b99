"""Prompts to token ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkdecode.errors import InvalidRequestError
from forkdecode.model.tokenizer import encode_plain, encode_prompt, render_chat
from tests.tiny_model import BOS, byte_tokenizer, vocabulary

VOCAB = vocabulary()
V = len(VOCAB)
PLAIN, WITH_BOS = byte_tokenizer(), byte_tokenizer(adds_bos=True)
HELLO = [{"role": "user", "content": "hello"}]


@given(st.text(min_size=1))
def test_text_survives_the_round_trip(text: str) -> None:
    for tokenizer in (PLAIN, WITH_BOS):
        ids = encode_prompt(tokenizer, text, vocab_size=V)
        assert tokenizer.decode(ids, skip_special_tokens=True) == text.replace(BOS, "").replace("<|end|>", "")


def test_bos_is_added_where_the_tokenizer_adds_it() -> None:
    assert encode_prompt(WITH_BOS, "hello", vocab_size=V) == (VOCAB[BOS], VOCAB["hello"])
    assert encode_prompt(PLAIN, "hello", vocab_size=V) == (VOCAB["hello"],)


@pytest.mark.parametrize("tokenizer", [PLAIN, WITH_BOS])
def test_a_chat_has_one_bos(tokenizer: Any) -> None:
    ids = encode_prompt(tokenizer, HELLO, vocab_size=V)
    assert ids.count(VOCAB[BOS]) == 1
    assert ids == tuple(tokenizer.apply_chat_template(HELLO, add_generation_prompt=True)["input_ids"])
    assert tokenizer.decode(ids) == f"{BOS}<user>hello\n<assistant>"
    assert ids == encode_prompt(tokenizer, "hello", vocab_size=V, chat=True)


def test_a_rendered_chat_given_as_text_has_one_bos() -> None:
    rendered = render_chat(WITH_BOS, HELLO)
    assert encode_prompt(WITH_BOS, rendered, vocab_size=V) == encode_prompt(WITH_BOS, HELLO, vocab_size=V)


def test_token_ids_are_taken_as_they_are() -> None:
    assert encode_prompt(PLAIN, [5, 0, V - 1], vocab_size=V) == (5, 0, V - 1)
    assert encode_prompt(PLAIN, np.array([5, 6]), vocab_size=V) == (5, 6)  # type: ignore[arg-type]
    assert all(type(i) is int for i in encode_prompt(PLAIN, np.array([5]), vocab_size=V))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "prompt: is empty"),
        ([], "prompt: is empty"),
        ("a\ud800b", "prompt: holds a lone surrogate"),
        ([{"role": "user", "content": "\udfff"}], "prompt: holds a lone surrogate"),
        ([1, V], f"{V} is not a token id; allowed: integers from 0 to {V - 1}"),
        ([-1], "-1 is not a token id"),
        ([1.0], r"1\.0 is not a token id"),
        ([True], "True is not a token id"),
        (["a"], "is a list of prompts; allowed: one"),
        (b"bytes", "bytes is not a prompt"),
        (7, "int is not a prompt"),
        (None, "NoneType is not a prompt"),
        ({"role": "user"}, "dict is not a prompt"),
        ([{"content": "hi"}], "is not a chat message"),
        ([{"role": "user"}], "has no content"),
        ([{"role": "user", "content": "hi"}, 3], "3 is not a chat message"),
    ],
)
def test_what_is_no_prompt_is_named(prompt: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        encode_prompt(PLAIN, prompt, vocab_size=V)
    assert caught.value.field == "prompt"


def test_an_empty_text_is_its_bos() -> None:
    assert encode_prompt(WITH_BOS, "", vocab_size=V) == (VOCAB[BOS],)


def test_chat_needs_a_template_and_a_text() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(InvalidRequestError, match="chat: this model has no chat template"):
        encode_prompt(tokenizer, HELLO, vocab_size=V)
    with pytest.raises(InvalidRequestError, match="chat: token ids are not a chat"):
        encode_prompt(PLAIN, [1, 2], vocab_size=V, chat=True)


def test_what_a_template_refuses_is_passed_on() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(InvalidRequestError, match="the chat template refuses it: roles must alternate"):
        encode_prompt(tokenizer, HELLO, vocab_size=V)


def test_plain_pieces_get_no_special_tokens() -> None:
    assert encode_plain(WITH_BOS, "forced_prefix", "hello", vocab_size=len(VOCAB)) == (VOCAB["hello"],)
    with pytest.raises(InvalidRequestError, match="bad_words: holds a lone surrogate") as caught:
        encode_plain(PLAIN, "bad_words", "\ud800", vocab_size=len(VOCAB))
    assert caught.value.field == "bad_words"
