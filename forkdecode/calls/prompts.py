"""What kind of prompt a caller gave: text, chat messages or token ids."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias

from forkdecode.calls.arguments import is_batch
from forkdecode.checks import MAX_INT, are_ids, check_unicode, shown
from forkdecode.errors import invalid
from forkdecode.types import Message, Prompt

PlainPrompt: TypeAlias = str | tuple[int, ...] | list[Message]
"""A text, token ids, or a chat's messages: told apart by their type."""
_PROMPTS = "a text, a sequence of token ids, or chat messages"
_MESSAGE = '{"role": ..., "content": ...}'


def plain_prompt(prompt: Prompt, *, chat: bool = False, vocab_size: int = MAX_INT + 1) -> PlainPrompt:
    """`prompt` in its plain form. chat: a text is taken as one user message.

    Raises InvalidRequestError with field "prompt" (or "chat"). Messages are not looked into:
    check_messages does that.
    """
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}] if chat else check_unicode("prompt", prompt)
    if isinstance(prompt, (bytes, Mapping)) or not hasattr(prompt, "__iter__"):
        raise invalid("prompt", f"{type(prompt).__name__} is not a prompt", _PROMPTS)
    items = list[Any](prompt)
    refuse_several(items)
    if items and isinstance(items[0], Mapping):
        return items
    if chat:
        raise invalid("chat", "token ids are not a chat", "a text or chat messages")
    if not items:
        raise invalid("prompt", "is empty", "at least one token")
    return tuple(items) if are_ids(items, vocab_size) else tuple(_checked_id(i, vocab_size) for i in items)


def refuse_several(items: list[Any]) -> None:
    """Raises InvalidRequestError for a list of prompts in the place of one."""
    if items and is_batch(items):
        takers = "decode, decode_many and score take lists"
        raise invalid("prompt", "is a list of prompts", f"one, {_PROMPTS}; {takers}")


def check_messages(messages: Sequence[Message]) -> None:
    """Raises InvalidRequestError unless each is a mapping with a role and a content of Unicode text."""
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise invalid("prompt", f"{shown(message)} is not a chat message", _MESSAGE)
        if "content" not in message:
            raise invalid("prompt", f"{shown(message)} has no content", _MESSAGE)
        if isinstance(message["content"], str):
            check_unicode("prompt", message["content"])


def _checked_id(item: object, vocab_size: int) -> int:
    # Integers of numpy and torch count too; True doesn't.
    token = -1
    if isinstance(item, SupportsIndex) and not isinstance(item, bool):
        token = operator.index(item)
    if not 0 <= token < vocab_size:
        raise invalid("prompt", f"{shown(item)} is not a token id", f"integers from 0 to {vocab_size - 1}")
    return token
