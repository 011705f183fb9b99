"""What LLM, AsyncLLM and the server share: a caller's arguments made ready for an engine."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forkdecode.checks import check_bool, check_unicode
from forkdecode.errors import InvalidRequestError, invalid
from forkdecode.model.info import ModelInfo
from forkdecode.requests.assembly import Assembler
from forkdecode.requests.resolve import Resolver
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.types import Greedy, make_options


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request and what makes text of its events."""

    request: DecodeRequest
    assembler: Assembler


class RequestMaker:
    """Checks requests for one model. Safe to call from several threads."""

    def __init__(self, tokenizer: Any | None, info: ModelInfo) -> None:
        self._resolver = Resolver(tokenizer, info)
        # Random, so that no id that a caller may choose is taken already.
        self._prefix = f"request-{uuid.uuid4().hex[:8]}"
        self._numbers = itertools.count(1)

    def prepare(
        self,
        prompt: Any,
        strategy: Any,
        options: Any,
        given: Mapping[str, Any],
        *,
        chat: bool,
        request_id: Any,
        stream: bool = False,
    ) -> Prepared:
        """Checks one request. Raises InvalidRequestError."""
        check_bool("stream", stream)
        name = f"{self._prefix}-{next(self._numbers)}" if request_id is None else request_id
        if not check_unicode("request_id", name, "a non-empty text"):
            raise invalid("request_id", "is empty", "a non-empty text")
        if options is not None and given:
            raise invalid(min(given), "stands beside an Options object", "either options= or keywords")
        request = self._resolver.resolve(
            prompt,
            Greedy() if strategy is None else strategy,
            make_options(given) if options is None else options,
            request_id=name,
            chat=check_bool("chat", chat),
            stream=stream,
        )
        return Prepared(request, Assembler(request, self._resolver.token_bytes()))

    def prepare_all(
        self,
        prompt: Any,
        strategy: Any,
        options: Any,
        given: Mapping[str, Any],
        *,
        chat: bool,
        request_id: Any,
    ) -> list[Prepared]:
        """Checks a prompt, or a list of prompts with one strategy, options and id each or for all.

        Raises InvalidRequestError, which says of which prompt of a list it speaks.
        """
        if not is_batch(prompt):
            return [self.prepare(prompt, strategy, options, given, chat=chat, request_id=request_id)]
        prompts = list(prompt)
        count = len(prompts)
        if isinstance(request_id, str):
            raise invalid("request_id", "is one for a list of prompts", "a list of ids, or None")
        each = zip(
            prompts,
            spread("strategy", strategy, count),
            spread("options", options, count),
            spread("request_id", request_id, count),
            strict=True,
        )
        prepared = []
        for number, (one, its_strategy, its_options, name) in enumerate(each, 1):
            try:
                ready = self.prepare(one, its_strategy, its_options, given, chat=chat, request_id=name)
            except InvalidRequestError as error:
                raise InvalidRequestError(
                    f"{error} (prompt {number} of {count})", field=error.field, request_id=error.request_id
                ) from error
            prepared.append(ready)
        return prepared


def is_batch(prompt: Any) -> bool:
    """Whether `prompt` is a list of prompts: of texts, of token id lists, or of chats; an empty list
    is one. A list of integers is one prompt, a list of messages is one chat."""
    if isinstance(prompt, (str, bytes, Mapping)) or not hasattr(prompt, "__getitem__"):
        return False
    if not len(prompt):
        return isinstance(prompt, Sequence)
    first = prompt[0]
    return isinstance(first, str) or (
        isinstance(first, Iterable)
        and not isinstance(first, (bytes, Mapping))
        and getattr(first, "ndim", 1) > 0
    )


def spread(field: str, value: Any, count: int) -> list[Any]:
    """One value for each of `count` prompts: a list as it is, anything else repeated."""
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise invalid(field, f"is a list of {len(value)} for {count} prompts", "one value, or one a prompt")
    return list(value)
