"""From a caller's arguments to what is sent; all that needs no model is checked here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forkdecode.calls.arguments import ArgumentReader, for_each
from forkdecode.calls.ranking import ranked, unranked
from forkdecode.calls.scoring import score_each
from forkdecode.checks import check_bool, check_token_ids, shown
from forkdecode.errors import ForkdecodeError, InvalidRequestError, invalid
from forkdecode.results import Event, Finished
from forkdecode.rpc.convert_requests import DecodeCall, ScoreCall, decode_request, score_request
from forkdecode.rpc.convert_tree_commands import (
    OpenCall,
    ResumeCall,
    given_limits,
    open_message,
    resume_message,
)
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.tree_types import OpenTree, TreeLimits
from forkdecode.types import Strategy


@dataclass(frozen=True, slots=True)
class Letter:
    """A request ready to be sent. strategy: the caller's, with a scorer if it has one. is_named: whether the
    caller has chosen the id."""

    message: pb.DecodeRequest
    strategy: Strategy
    request_id: str
    is_named: bool


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A request for scores, ready to be sent. is_named: see Letter."""

    message: pb.ScoreRequest
    is_named: bool


class Writer:
    """Safe to call from several threads."""

    def __init__(self) -> None:
        self._arguments = ArgumentReader()

    def decode(
        self,
        prompt: Any,
        strategy: Any,
        options: Any,
        given: Mapping[str, Any],
        *,
        chat: bool,
        request_id: Any,
        stream: bool = False,
    ) -> Letter:
        """Raises InvalidRequestError."""
        read = self._arguments.read(
            prompt, strategy, options, given, chat=chat, request_id=request_id, stream=stream
        )
        call = DecodeCall(
            read.prompt, unranked(read.strategy), read.options, read.request_id, read.stream, read.chat
        )
        try:
            return Letter(decode_request(call), read.strategy, read.request_id, request_id is not None)
        except InvalidRequestError as error:
            error.request_id = read.request_id
            raise

    def decode_all(
        self,
        prompt: Any,
        strategy: Any,
        options: Any,
        given: Mapping[str, Any],
        *,
        chat: bool,
        request_id: Any,
    ) -> list[Letter]:
        """For a prompt or a list of them; see for_each. Raises InvalidRequestError."""

        def make(one: Any, its_strategy: Any, its_options: Any, name: Any) -> Letter:
            return self.decode(one, its_strategy, its_options, given, chat=chat, request_id=name)

        return for_each(prompt, strategy, options, request_id, make)

    def score_all(
        self,
        prompt: Any,
        continuations: Any,
        *,
        top_logprobs: int,
        chat: bool,
        priority: int,
        cache_salt: str,
        request_id: Any,
    ) -> list[Inquiry]:
        """For a prompt or a list of them; see score_each. Raises InvalidRequestError."""

        def make(one: Any, its_own: Any, given_id: Any) -> Inquiry:
            name = self._arguments.name(given_id)
            try:
                call = ScoreCall(one, its_own, top_logprobs, priority, cache_salt, name)
                message = score_request(call, chat=check_bool("chat", chat))
                return Inquiry(message, given_id is not None)
            except InvalidRequestError as error:
                error.request_id = name
                raise

        return score_each(prompt, continuations, request_id, make)


def open_tree(
    prompt: Any, *, chat: bool, seed: int | None, cache_salt: str, limits: TreeLimits | None
) -> pb.TreeCommand:
    """Raises InvalidRequestError."""
    if limits is not None and not isinstance(limits, TreeLimits):
        raise invalid("limits", f"{shown(limits)} is no TreeLimits", "TreeLimits(...) or None")
    wanted = {} if limits is None else given_limits(limits)
    return open_message(OpenCall(OpenTree(prompt, chat, seed, cache_salt), wanted))


def resume_tree(name: str, secret: str) -> pb.TreeCommand:
    """Raises InvalidRequestError."""
    return resume_message(ResumeCall(name, secret))


def detokenize_request(token_ids: Sequence[int]) -> pb.DetokenizeRequest:
    """Raises InvalidRequestError."""
    return pb.DetokenizeRequest(token_ids=check_token_ids("token_ids", token_ids))


def read_events(item: list[Event] | ForkdecodeError) -> list[Event]:
    """What a caller sees of what came, in the caller's thread: scorers run here. Raises the error
    that ended the request."""
    if isinstance(item, ForkdecodeError):
        raise item
    return [Finished(e.request_id, ranked(e.result)) if isinstance(e, Finished) else e for e in item]
