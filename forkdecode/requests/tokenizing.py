"""A tokenizer for several threads: one at a time, and none behind another's long text."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from forkdecode.calls.prompts import plain_prompt
from forkdecode.model.tokenizer import encode_plain, encode_prompt, lead_of
from forkdecode.types import Message, Prompt

LONG_TEXT = 2**16
"""Characters that take long: a tokenizer takes seconds for a megabyte."""


class Tokenizing:
    """Tokenizers keep state while they encode (truncation, padding, Python's own caches): one is used by one
    thread at a time. Long texts have a second one, copied for the first of them, so that short ones wait for
    none; token ids wait for nobody."""

    def __init__(self, tokenizer: Any | None, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lead = lead_of(tokenizer)
        self._using = threading.Lock()
        self._copy: Any | None = None
        self._using_copy = threading.Lock()
        self._can_copy = tokenizer is not None

    def prompt(self, prompt: Prompt, *, chat: bool) -> tuple[int, ...]:
        """See encode_prompt."""
        plain = plain_prompt(prompt, chat=chat, vocab_size=self._vocab_size)
        if isinstance(plain, tuple):
            return plain
        with self._held_for(_characters(plain)) as tokenizer:
            return encode_prompt(tokenizer, plain, vocab_size=self._vocab_size)

    def plain(self, field: str, text: str, *, begins: bool = False) -> tuple[int, ...]:
        """See encode_plain. begins: no text comes before it."""
        lead = () if begins else self._lead
        with self._held_for(len(text)) as tokenizer:
            return encode_plain(tokenizer, field, text, vocab_size=self._vocab_size, lead=lead)

    @property
    def begins_apart(self) -> bool:
        """Whether a text's beginning has other tokens than the same text behind another."""
        return bool(self._lead)

    @contextmanager
    def _held_for(self, characters: int) -> Iterator[Any | None]:
        """A tokenizer that is this thread's meanwhile."""
        if characters >= LONG_TEXT:
            with self._using_copy:
                copied = self._copied()
                if copied is not None:
                    yield copied
                    return
        with self._using:
            yield self._tokenizer

    def _copied(self) -> Any | None:
        """None of a tokenizer that can't be copied: then all wait for one another."""
        if self._copy is None and self._can_copy:
            with self._using:
                try:
                    self._copy = copy.deepcopy(self._tokenizer)
                except Exception:  # of a caller's own, whatever it holds
                    self._can_copy = False
        return self._copy


def _characters(prompt: str | Sequence[Message]) -> int:
    """Of a text, or of a chat's messages together. What is wrong with those is looked at later."""
    if isinstance(prompt, str):
        return len(prompt)
    turns = (turn for turn in prompt if isinstance(turn, Mapping))
    return sum(len(text) for turn in turns for text in turn.values() if isinstance(text, str))
