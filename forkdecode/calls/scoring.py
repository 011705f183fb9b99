"""What a caller wants scored, as far as it can be checked without knowing the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from forkdecode.calls.arguments import for_each, is_batch
from forkdecode.checks import check_bool, check_int, check_words
from forkdecode.errors import InvalidRequestError, invalid
from forkdecode.types import MAX_COUNT, Options

T = TypeVar("T")

MAX_TOP_LOGPROBS = 1024


@dataclass(frozen=True, slots=True)
class ScoreArguments:
    """One score request as its caller wrote it; all but the prompt is checked.

    options holds what a score request shares with others: logprobs (its top_logprobs), priority and
    cache_salt.
    """

    prompt: Any
    continuations: tuple[str | tuple[int, ...], ...]
    options: Options
    request_id: str
    chat: bool


def read_score(
    prompt: Any,
    continuations: Any,
    *,
    top_logprobs: Any,
    chat: Any,
    priority: Any,
    cache_salt: Any,
    request_id: str,
) -> ScoreArguments:
    """Raises InvalidRequestError naming the argument at fault."""
    try:
        words = check_words("continuations", continuations)
        if not 0 < len(words) <= MAX_COUNT:
            raise invalid("continuations", f"are {len(words)}", f"1 to {MAX_COUNT} of them")
        top = check_int("top_logprobs", top_logprobs, 0, MAX_TOP_LOGPROBS)
        options = Options(logprobs=top, priority=priority, cache_salt=cache_salt)
        return ScoreArguments(prompt, words, options, request_id, check_bool("chat", chat))
    except InvalidRequestError as error:
        error.request_id = request_id
        raise


def score_each(
    prompt: Any, continuations: Any, request_id: Any, make: Callable[[Any, Any, Any], T]
) -> list[T]:
    """`make` of a prompt, its continuations and its id, or of each of a list of prompts: continuations are
    then the same for all, or a list of them for each. Raises InvalidRequestError; see for_each."""
    each = is_batch(prompt) and isinstance(continuations, Sequence) and _are_lists(continuations)
    if each and len(continuations) != len(prompt):
        raise invalid(
            "continuations",
            f"are {len(continuations)} lists for {len(prompt)} prompts",
            "one list for all, or one a prompt",
        )
    lists = list(continuations) if each else None
    return for_each(
        prompt,
        lists,  # in the place of strategies, which are one a prompt as well
        None,
        request_id,
        lambda one, its_own, _, name: make(one, continuations if lists is None else its_own, name),
    )


def _are_lists(continuations: Sequence[Any]) -> bool:
    """Whether each is a list of continuations itself."""
    return bool(continuations) and all(map(is_batch, continuations))
