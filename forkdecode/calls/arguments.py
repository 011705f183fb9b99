"""A caller's arguments, as far as they can be checked without knowing the model."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from forkdecode.checks import check_bool, check_unicode, shown
from forkdecode.errors import InvalidRequestError, invalid
from forkdecode.types import STRATEGY_NAMES, Greedy, Options, Strategy, make_options

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Arguments:
    """One request as its caller wrote it; all but the prompt is checked."""

    prompt: Any
    strategy: Strategy
    options: Options
    request_id: str
    chat: bool
    stream: bool


class ArgumentReader:
    """Checks what callers pass, and names the requests that they don't name. Safe to call from
    several threads."""

    def __init__(self) -> None:
        # Random, so that no id that a caller may choose is taken already.
        self._prefix = f"request-{uuid.uuid4().hex[:8]}"
        self._numbers = itertools.count(1)

    def name(self, request_id: Any) -> str:
        """`request_id` if there is one, else a new one. Raises InvalidRequestError."""
        name = f"{self._prefix}-{next(self._numbers)}" if request_id is None else request_id
        if not check_unicode("request_id", name, "a non-empty text"):
            raise invalid("request_id", "is empty", "a non-empty text")
        return str(name)

    def read(
        self,
        prompt: Any,
        strategy: Any,
        options: Any,
        given: Mapping[str, Any],
        *,
        chat: bool,
        request_id: Any,
        stream: bool = False,
    ) -> Arguments:
        """One request's. Raises InvalidRequestError."""
        check_bool("stream", stream)
        name = self.name(request_id)
        if options is not None and given:
            raise invalid(min(given), "stands beside an Options object", "either options= or keywords")
        made = make_options(given) if options is None else options
        check_bool("chat", chat)
        try:
            return Arguments(prompt, check_strategy(strategy), check_options(made), name, chat, stream)
        except InvalidRequestError as error:
            error.request_id = name
            raise


def check_strategy(strategy: Any) -> Strategy:
    """`strategy`, or Greedy() for None. Raises InvalidRequestError."""
    if strategy is None:
        return Greedy()
    if isinstance(strategy, type):
        raise invalid("strategy", f"{strategy.__name__} is a class", f"{strategy.__name__}(...)")
    if not isinstance(strategy, Strategy):
        raise invalid("strategy", f"{shown(strategy)} is not a strategy", STRATEGY_NAMES)
    return strategy


def check_options(options: Any) -> Options:
    """Raises InvalidRequestError for what is no Options object."""
    if not isinstance(options, Options):
        raise invalid("options", f"{shown(options)} is not an Options object", "forkdecode.Options")
    return options


def for_each(
    prompt: Any,
    strategy: Any,
    options: Any,
    request_id: Any,
    make: Callable[[Any, Any, Any, Any], T],
) -> list[T]:
    """`make` of a prompt, or of each of a list of prompts with one strategy, options and id each or
    for all. InvalidRequestError then says of which prompt of the list it speaks."""
    if not is_batch(prompt):
        return [make(prompt, strategy, options, request_id)]
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
    made = []
    for number, one in enumerate(each, 1):
        try:
            made.append(make(*one))
        except InvalidRequestError as error:
            raise InvalidRequestError(
                f"{error} (prompt {number} of {count})",
                field=error.field,
                limit=error.limit,
                request_id=error.request_id,
            ) from error
    return made


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
