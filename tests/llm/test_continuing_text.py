"""Texts that go on after a prompt, with a tokenizer that writes a space before every text: Llama 2's kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forkdecode import LLM
from forkdecode.model.tokenizer import encode_all, encode_plain, lead_of
from tests.llm.models import opened, tiny_llama
from tests.llm.test_grammar_tokenizers import sentencepiece_tokenizer
from tests.tiny_model import byte_tokenizer

TOKENIZER = sentencepiece_tokenizer()
VOCAB = TOKENIZER.get_vocab()
BOS_ID, EOS_ID = 1, 2
SPACED = tuple(TOKENIZER.encode("world", add_special_tokens=False))
"""With a space before it."""


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    model = tiny_llama(vocab_size=len(VOCAB), eos_token_id=EOS_ID, bos_token_id=BOS_ID)
    with opened(model, tokenizer=TOKENIZER) as found:
        yield found


@pytest.mark.parametrize("text", [" world", "world", ", hello", "\n\nhello", "  x"])
def test_it_is_the_text_that_was_given(llm: LLM, text: str) -> None:
    assert llm.score("hello", [text]).continuations[0].text == text
    assert llm.decode("hello", forced_prefix=text, max_tokens=32, ignore_eos=True).text.startswith(text)
    with llm.tree("hello") as tree:
        assert tree.extend(tree.root, text).path_text == "hello" + text


def test_what_was_decoded_scores_the_same_by_its_text(llm: LLM) -> None:
    one = llm.decode("hello", forced_prefix=SPACED, max_tokens=len(SPACED)).candidates[0]
    again = llm.score("hello", [one.text]).continuations[0]
    assert again.token_ids == one.token_ids


def test_after_a_prompt_without_text_it_begins(llm: LLM) -> None:
    assert llm.score([BOS_ID], ["world"]).continuations[0].token_ids == SPACED
    forced = llm.decode([BOS_ID], forced_prefix="world", max_tokens=len(SPACED)).candidates[0]
    assert forced.token_ids == SPACED
    with llm.tree([BOS_ID]) as tree:
        assert tree.extend(tree.root, "world").token_ids == SPACED


def test_many_texts_are_as_each() -> None:
    texts = [" world", "world", "", "\n", "wor ld"]
    lead = lead_of(TOKENIZER)
    each = [list(encode_plain(TOKENIZER, "t", text, vocab_size=len(VOCAB), lead=lead)) for text in texts]
    assert lead
    assert encode_all(TOKENIZER, texts) == each
    assert [TOKENIZER.decode([VOCAB["hello"], *ids]) for ids in each] == ["hello" + text for text in texts]


def test_tokenizers_that_write_no_space_are_left_alone() -> None:
    assert lead_of(byte_tokenizer()) == lead_of(None) == ()


def test_a_tokenizer_that_lacks_what_is_asked_is_left_alone() -> None:
    class Digits:
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return [int(character) for character in text]

    assert lead_of(Digits()) == ()  # type: ignore[arg-type]
