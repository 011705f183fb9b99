"""What LLM and AsyncLLM share: a running engine, and requests made ready for it."""

from __future__ import annotations

import dataclasses
import itertools
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from forkdecode.checks import check_bool, check_int, check_unicode, shown
from forkdecode.config import EngineConfig
from forkdecode.errors import InvalidRequestError, invalid
from forkdecode.llm.assembly import Assembler
from forkdecode.llm.resolve import Resolver
from forkdecode.llm.start import RunningEngine, start_engine
from forkdecode.model.loader import LoadedModel, adopt, load
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.types import Greedy, make_options

MAX_THREADS = 4096


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request and what makes text of its events."""

    request: DecodeRequest
    assembler: Assembler


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which model a caller wants and how; not checked yet."""

    model: Any
    tokenizer: Any
    dtype: str
    device: str
    threads: int | None
    max_positions: int | None


class Session:
    """An engine with the means to feed it. Everything here may be called from any thread."""

    def __init__(self, choice: ModelChoice, config: dict[str, Any]) -> None:
        settings, threads = make_config(config), choice.threads
        if threads is not None:
            threads = check_int("threads", threads, 1, MAX_THREADS)
        loaded = open_model(choice)
        self._resolver = Resolver(loaded.tokenizer, loaded.info)
        self.engine: RunningEngine = start_engine(loaded, settings, threads)
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


def open_model(choice: ModelChoice) -> LoadedModel:
    """The model that a caller names or hands over. Raises ModelLoadError, InvalidRequestError."""
    model, tokenizer, limit = choice.model, choice.tokenizer, choice.max_positions
    for name, value in (("dtype", choice.dtype), ("device", choice.device)):
        check_unicode(name, value)
    if limit is not None:
        limit = check_int("max_positions", limit, 1)
    if tokenizer is not None and not (hasattr(tokenizer, "encode") and hasattr(tokenizer, "get_vocab")):
        raise invalid("tokenizer", f"{shown(tokenizer)} is none", "a tokenizer of transformers, or None")
    if isinstance(model, PreTrainedModel):
        return adopt(model, tokenizer, choice.dtype, choice.device, max_positions=limit)
    if not isinstance(model, (str, os.PathLike)) or not os.fspath(model):
        raise invalid("model", f"{shown(model)} is no model", "a name, a folder or a transformers model")
    loaded = load(os.fspath(model), choice.dtype, choice.device, max_positions=limit)
    return loaded if tokenizer is None else dataclasses.replace(loaded, tokenizer=tokenizer)


def make_config(given: Mapping[str, Any]) -> EngineConfig:
    """EngineConfig from keyword arguments; an unknown name is refused by name."""
    names = [field.name for field in dataclasses.fields(EngineConfig)]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise invalid(unknown[0], "is not a setting of the engine", ", ".join(names))
    return EngineConfig(**given)


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
