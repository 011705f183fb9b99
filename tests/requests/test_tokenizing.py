"""Nobody waits behind another's long text."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from forkdecode.errors import InvalidRequestError
from forkdecode.requests import tokenizing
from forkdecode.requests.tokenizing import LONG_TEXT, Tokenizing
from forkdecode.types import Prompt
from tests.llm.models import EOS_ID, TOKENIZER, VOCAB, opened
from tests.tiny_model import EOS

LONG = "abcdefgh" * (LONG_TEXT // 8)
WAIT = 60.0


class Slow:
    """encode_prompt, which takes until go() for long texts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self._go = threading.Event(), threading.Event()
        self._plain = tokenizing.encode_prompt
        monkeypatch.setattr(tokenizing, "encode_prompt", self)
        self.go = self._go.set

    def __call__(self, tokenizer: Any, prompt: Any, **more: Any) -> tuple[int, ...]:
        if prompt == LONG:
            self.entered.set()
            assert self._go.wait(WAIT)
        return self._plain(tokenizer, prompt, **more)


@pytest.mark.parametrize(
    "other",
    [
        lambda one: one.prompt([5], chat=False),
        lambda one: one.prompt("short", chat=False),
        lambda one: one.prompt([{"role": "user", "content": "short"}], chat=False),
        lambda one: one.plain("bad_words", "short"),
    ],
    ids=["ids", "text", "chat", "piece"],
)
def test_a_long_text_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, other: Callable[[Tokenizing], tuple[int, ...]]
) -> None:
    one, slow = Tokenizing(TOKENIZER, len(VOCAB)), Slow(monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(lambda: one.prompt(LONG, chat=False))
        assert slow.entered.wait(WAIT)
        try:
            assert pool.submit(lambda: other(one)).result(WAIT)
        finally:
            slow.go()
        assert len(long.result(WAIT)) > LONG_TEXT // 16


@pytest.mark.parametrize(
    "prompt",
    [LONG, [{"role": "user", "content": LONG}, {"role": "assistant", "content": "b"}]],
    ids=["text", "chat"],
)
def test_long_and_short_texts_become_the_same_tokens(prompt: Prompt, monkeypatch: pytest.MonkeyPatch) -> None:
    by_copy = Tokenizing(TOKENIZER, len(VOCAB)).prompt(prompt, chat=False)
    monkeypatch.setattr(tokenizing, "LONG_TEXT", 2**30)
    assert Tokenizing(TOKENIZER, len(VOCAB)).prompt(prompt, chat=False) == by_copy


def test_a_tokenizer_that_cannot_be_copied() -> None:
    class Own:
        bos_token_id = None

        def __init__(self) -> None:
            self.own = threading.Lock()

        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return [len(text) % 7]

    one = Tokenizing(Own(), 10)
    for text in (LONG, LONG, "short"):
        assert one.prompt(text, chat=False) == one.plain("stop", text) == (len(text) % 7,)


def test_without_a_tokenizer() -> None:
    one = Tokenizing(None, 10)
    assert one.prompt([3], chat=False) == (3,)
    for text in ("short", LONG):
        with pytest.raises(InvalidRequestError, match="no tokenizer"):
            one.prompt(text, chat=False)


def test_the_name_of_a_special_token_in_a_text_is_that_token_and_its_letters_can_be_passed_as_ids() -> None:
    """What docs/options.md says of texts that one does not control."""
    text = f"x{EOS}y"
    assert EOS_ID in Tokenizing(TOKENIZER, len(VOCAB)).plain("continuation", text)
    letters = TOKENIZER.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert EOS_ID not in letters
    with opened() as llm, llm.tree("hello") as tree:
        assert EOS_ID in tree.extend(tree.root, text).token_ids
        assert tree.extend(tree.root, letters).text == text
