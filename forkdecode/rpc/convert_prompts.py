"""Prompts and pieces of text or tokens, to and from the protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from forkdecode.calls.prompts import refuse_several
from forkdecode.checks import check_items, check_token_ids, check_unicode, shown
from forkdecode.errors import InvalidRequestError, invalid
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.types import Prompt

_PROMPTS = "a text, token ids or chat messages"
_MESSAGES = '{"role": ..., "content": ...}, both of them texts'


def prompt_of(message: pb.Prompt) -> Prompt:
    """Text, a list of {"role", "content"}, or a tuple of token ids. Raises InvalidRequestError."""
    form = message.WhichOneof("form")
    if form is None:
        raise invalid("prompt", "is not set", "text, chat or token_ids")
    if form == "text":
        return message.text
    if form == "token_ids":
        return tuple(message.token_ids.ids)
    if not message.chat.messages:
        raise invalid("prompt", "has no chat messages", "at least one")
    return [{"role": turn.role, "content": turn.content} for turn in message.chat.messages]


def prompt_message(prompt: Any, *, chat: bool = False) -> pb.Prompt:
    """The prompt as it is sent. chat: a text is taken as one user message.

    Raises InvalidRequestError for what is no prompt, and for chat messages that hold more than a role
    and a text: the protocol has no place for it.
    """
    if isinstance(prompt, str):
        text = check_unicode("prompt", prompt)
        return _chat_message([{"role": "user", "content": text}]) if chat else pb.Prompt(text=text)
    if isinstance(prompt, (bytes, Mapping)) or not hasattr(prompt, "__iter__"):
        raise invalid("prompt", f"{type(prompt).__name__} is not a prompt", _PROMPTS)
    items = check_items("prompt", prompt, "token ids or messages")
    if not items:
        raise invalid("prompt", "is empty", "at least one token")
    refuse_several(items)
    if isinstance(items[0], Mapping):
        return _chat_message(items)
    if chat:
        raise invalid("chat", "token ids are not a chat", "a text or chat messages")
    return pb.Prompt(token_ids=pb.TokenIds(ids=check_token_ids("prompt", items)))


def _chat_message(turns: Iterable[Any]) -> pb.Prompt:
    chat = pb.Chat()
    for turn in turns:
        if not isinstance(turn, Mapping) or set(turn) != {"role", "content"}:
            raise invalid("prompt", f"{shown(turn)} is not a chat message that can be sent", _MESSAGES)
        role, content = (check_unicode("prompt", turn[key], _MESSAGES) for key in ("role", "content"))
        chat.messages.add(role=role, content=content)
    return pb.Prompt(chat=chat)


def piece_of(field: str, index: int, piece: pb.BadWord | pb.Continuation) -> str | tuple[int, ...]:
    """A text or token ids. Raises InvalidRequestError naming `field` when it is neither or empty."""
    form = piece.WhichOneof("form")
    found: str | tuple[int, ...] = piece.text if form == "text" else tuple(piece.token_ids.ids)
    if not found:
        problem = f"entry {index} is {'not set' if form is None else 'empty'}"
        raise invalid(field, problem, "non-empty texts or token ids")
    return found


def token_ids(ids: Iterable[int]) -> pb.TokenIds:
    """A message of its own for a list of token ids."""
    return pb.TokenIds(ids=ids)


def check_request_id(name: Any) -> str:
    """Raises InvalidRequestError unless `name` can name a request over the network."""
    text = check_unicode("request_id", name, "a non-empty text")
    if not text:
        raise invalid("request_id", "is empty", "a non-empty text")
    if len(text.encode()) > MAX_REQUEST_ID:
        raise InvalidRequestError(
            f"request_id: has {len(text.encode())} bytes; allowed: at most {MAX_REQUEST_ID}",
            field="request_id",
            limit=f"at most {MAX_REQUEST_ID} bytes",
        )
    return text


MAX_REQUEST_ID = 256
"""Bytes of a request id: it returns in the headers of errors, which are small."""
