"""Prompts to token ids: text, chat messages or ids, every mistake named before it costs a block."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from forkdecode.calls.prompts import check_messages, plain_prompt
from forkdecode.checks import check_unicode
from forkdecode.errors import InvalidRequestError, invalid
from forkdecode.types import Message, Prompt

_LEAD = "\n"
"""It merges with no word's beginning."""


class Tokenizer(Protocol):
    """The part of transformers' tokenizers that prompts need."""

    bos_token: str | None
    bos_token_id: int | None
    chat_template: Any

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any: ...


def encode_prompt(
    tokenizer: Tokenizer | None, prompt: Prompt, *, vocab_size: int, chat: bool = False
) -> tuple[int, ...]:
    """Token ids of a prompt, at least one. chat: a text is taken as one user message. Without a
    tokenizer token ids are the only prompts.

    Raises InvalidRequestError with field "prompt" (or "chat").
    """
    plain = plain_prompt(prompt, chat=chat, vocab_size=vocab_size)
    if isinstance(plain, tuple):
        return plain
    ids = _encode_text(tokenizer, plain) if isinstance(plain, str) else _encode_chat(tokenizer, plain)
    if not ids:
        raise invalid("prompt", "is empty", "at least one token")
    if max(ids) >= vocab_size:
        raise _outside("prompt", ids, vocab_size)
    return tuple(ids)


def encode_plain(
    tokenizer: Tokenizer | None, field: str, text: str, *, vocab_size: int, lead: Sequence[int] = ()
) -> tuple[int, ...]:
    """Token ids of a piece of text (a forced prefix, a bad word): no special tokens are added. lead: of
    `lead_of`, for a text that other text comes before. Raises InvalidRequestError."""
    check_unicode(field, text)
    encode = partial(_present(tokenizer, field).encode, add_special_tokens=False)
    ids = _behind(lead, encode(_LEAD + text)) if lead else None
    if ids is None:
        ids = encode(text)
    if ids and max(ids) >= vocab_size:
        raise _outside(field, ids, vocab_size)
    return tuple(ids)


def encode_all(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """The same of many texts that all go on another, in one call. Raises what the tokenizer does."""
    encode, lead = partial(tokenizer, add_special_tokens=False), lead_of(tokenizer)
    if lead:
        found = [_behind(lead, ids) for ids in encode([_LEAD + text for text in texts])["input_ids"]]
        whole = [ids for ids in found if ids is not None]
        if len(whole) == len(texts):
            return whole
    encoded: list[list[int]] = encode(list(texts))["input_ids"]
    return encoded


def _behind(lead: Sequence[int], ids: Sequence[int]) -> list[int] | None:
    """The tokens after those of `lead`; None where they don't begin with them."""
    begins = len(lead)
    return list(ids[begins:]) if list(ids[:begins]) == list(lead) else None


def lead_of(tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """Tokens behind which a text is encoded as one that goes on: SentencePiece models write a space before a
    text's first word, which is there in no text that goes on. () where the two are alike."""
    if tokenizer is None:
        return ()
    encode = partial(tokenizer.encode, add_special_tokens=False)
    try:
        lead, both, alone = encode(_LEAD), encode(_LEAD + "a"), encode("a")
    except Exception:  # a caller's own, which may know neither
        return ()
    return tuple(lead) if _behind(lead, both) not in (None, list(alone)) else ()


def _present(tokenizer: Tokenizer | None, field: str) -> Tokenizer:
    if tokenizer is None:
        raise invalid(field, "this model has no tokenizer", "token ids")
    return tokenizer


def _outside(field: str, ids: Sequence[int], vocab_size: int) -> InvalidRequestError:
    """A tokenizer may have more tokens than its model."""
    problem = f"the tokenizer makes it token {max(ids)}, which the model lacks"
    return invalid(field, problem, f"texts of its tokens 0 to {vocab_size - 1}")


def render_chat(tokenizer: Tokenizer, messages: Sequence[Message]) -> str:
    """The chat template's text for `messages`, ready for the assistant's answer."""
    if not getattr(tokenizer, "chat_template", None):
        raise invalid("chat", "this model has no chat template", "plain text prompts with this model")
    check_messages(messages)
    try:
        plain = [dict(message) for message in messages]
        return str(tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # templates raise of every kind, on purpose too (wrong order of roles)
        raise invalid("prompt", f"the chat template refuses it: {error}", "messages of its format") from error


def _encode_chat(tokenizer: Tokenizer | None, messages: Sequence[Message]) -> list[int]:
    # A template writes the BOS itself where the model wants one: adding special tokens would double it.
    found = _present(tokenizer, "prompt")
    return found.encode(render_chat(found, messages), add_special_tokens=False)


def _encode_text(tokenizer: Tokenizer | None, text: str) -> list[int]:
    found = _present(tokenizer, "prompt")
    ids = found.encode(text, add_special_tokens=True)
    # The caller rendered a template and so wrote the BOS that the tokenizer adds.
    bos = found.bos_token_id
    if bos is not None and ids[:2] == [bos, bos] and text.startswith(found.bos_token or "\0"):
        return ids[1:]
    return ids
