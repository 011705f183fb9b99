"""Texts that cannot fit a model are refused before a tokenizer sees them; those that fit never are."""

from __future__ import annotations

from typing import Any

import pytest

from forkdecode.errors import InvalidRequestError
from forkdecode.requests.text_limit import MAX_DETOKENIZED, TextLimit
from tests.tiny_model import BOS, byte_tokenizer

POSITIONS = 100
CHARACTERS = POSITIONS * 16


class Tokenizer:
    """One whose longest token is long."""

    def get_vocab(self) -> dict[str, int]:
        return {"a": 0, "b" * 40: 1}


def refused(prompt: Any, tokenizer: Any = None) -> bool:
    try:
        TextLimit(tokenizer, POSITIONS).check_prompt(prompt)
    except InvalidRequestError as error:
        return error.field == "prompt"
    return False


def chat(*contents: str) -> list[dict[str, str]]:
    return [{"role": "", "content": content} for content in contents]


@pytest.mark.parametrize(
    ("prompt", "is_refused"),
    [
        ("x" * CHARACTERS, False),
        ("x" * (CHARACTERS + 1), True),
        (chat("x" * CHARACTERS), False),
        (chat("x" * CHARACTERS, "x"), True),
        (chat(*[""] * POSITIONS), False),
        (chat(*[""] * (POSITIONS + 1)), True),
        ((1,) * (CHARACTERS + 1), False),
        ([], False),
        (3, False),
        ([{"role": "user"}, 3, {"content": 4}], False),
    ],
)
def test_prompts(prompt: Any, is_refused: bool) -> None:
    assert refused(prompt, byte_tokenizer()) is is_refused


def test_the_longest_token_counts() -> None:
    assert not refused("b" * 40 * POSITIONS, Tokenizer())
    assert refused("b" * (40 * POSITIONS + 1), Tokenizer())


def test_as_many_of_the_longest_tokens_as_fit_are_let_through() -> None:
    tokenizer = byte_tokenizer()
    text = BOS * POSITIONS
    assert len(tokenizer.encode(text, add_special_tokens=False)) == POSITIONS
    assert not refused(text, tokenizer)


def test_token_ids_that_are_made_text() -> None:
    limit = TextLimit(None, POSITIONS)
    limit.check_ids([1] * MAX_DETOKENIZED)
    with pytest.raises(InvalidRequestError, match="token_ids: has 65537"):
        limit.check_ids([1] * (MAX_DETOKENIZED + 1))
    TextLimit(None, 10**6).check_ids([1] * 10**6)
