"""Requests to and from the protocol. Whatever a request can get wrong in itself is found here."""

from __future__ import annotations

from dataclasses import dataclass, field

from forkdecode.checks import check_bool, check_int, check_items, check_unicode, check_words, keep, shown
from forkdecode.errors import invalid
from forkdecode.rpc.convert_options import options_message, options_of
from forkdecode.rpc.convert_prompts import (
    MAX_REQUEST_ID,
    check_request_id,
    piece_of,
    prompt_message,
    prompt_of,
    token_ids,
)
from forkdecode.rpc.convert_strategies import set_strategy, strategy_of
from forkdecode.rpc.fields import check_known
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.types import Greedy, Options, Prompt, Strategy


@dataclass(frozen=True, slots=True)
class DecodeCall:
    """What `decode` and `stream` are given. request_id None: the server makes one up. stream: events
    of every step are wanted. chat: a text prompt is one user message; a call that was received never
    has it set, because its prompt is then messages."""

    prompt: Prompt
    strategy: Strategy = field(default_factory=Greedy)
    options: Options = field(default_factory=Options)
    request_id: str | None = None
    stream: bool = False
    chat: bool = False


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """What `score` is given; checked but for the prompt."""

    prompt: Prompt
    continuations: tuple[str | tuple[int, ...], ...]
    top_logprobs: int = 0
    priority: int = 0
    cache_salt: str = ""
    request_id: str | None = None

    def __post_init__(self) -> None:
        items = check_items("continuations", self.continuations, "texts or token id lists")
        if not items:
            raise invalid("continuations", "is empty", "at least one")
        keep(self, "continuations", check_words)
        keep(self, "top_logprobs", check_int, 0, 1024)
        keep(self, "priority", check_int, -(2**31), 2**31 - 1)
        keep(self, "cache_salt", check_unicode)
        if self.request_id is not None:
            check_request_id(self.request_id)


def decode_call(request: pb.DecodeRequest) -> DecodeCall:
    """Raises InvalidRequestError: its field is the SDK's name; fields.field_path has the protocol's."""
    check_known(request)
    return DecodeCall(
        prompt=prompt_of(request.prompt),
        strategy=strategy_of(request),
        options=options_of(request.options),
        request_id=check_request_id(request.request_id) if request.request_id else None,
        stream=request.stream,
    )


def decode_request(call: DecodeCall) -> pb.DecodeRequest:
    """The request as it is sent. Raises InvalidRequestError for what cannot be."""
    if not isinstance(call.options, Options):
        raise invalid("options", f"{shown(call.options)} is not an Options object", "forkdecode.Options")
    request = pb.DecodeRequest(
        prompt=prompt_message(call.prompt, chat=check_bool("chat", call.chat)),
        options=options_message(call.options),
        stream=check_bool("stream", call.stream),
    )
    set_strategy(request, call.strategy)
    if call.request_id is not None:
        request.request_id = check_request_id(call.request_id)
    return request


def score_call(request: pb.ScoreRequest) -> ScoreCall:
    """Raises InvalidRequestError: its field is the SDK's name, and the protocol's."""
    check_known(request)
    return ScoreCall(
        prompt=prompt_of(request.prompt),
        continuations=tuple(
            piece_of("continuations", i, piece) for i, piece in enumerate(request.continuations)
        ),
        top_logprobs=request.top_logprobs,
        priority=request.priority,
        cache_salt=request.cache_salt,
        request_id=request.request_id or None,
    )


def score_request(call: ScoreCall, *, chat: bool = False) -> pb.ScoreRequest:
    """The request as it is sent. chat: a text prompt is one user message. Raises InvalidRequestError."""
    request = pb.ScoreRequest(
        prompt=prompt_message(call.prompt, chat=check_bool("chat", chat)),
        top_logprobs=call.top_logprobs,
        priority=call.priority,
        cache_salt=call.cache_salt,
        request_id=call.request_id or "",
    )
    for piece in call.continuations:
        if isinstance(piece, str):
            request.continuations.add(text=piece)
        else:
            request.continuations.add(token_ids=token_ids(piece))
    return request


__all__ = [
    "MAX_REQUEST_ID",
    "DecodeCall",
    "ScoreCall",
    "decode_call",
    "decode_request",
    "prompt_message",
    "prompt_of",
    "score_call",
    "score_request",
]
