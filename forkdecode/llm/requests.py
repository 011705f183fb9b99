"""What LLM and AsyncLLM share: a running engine, and requests made ready for it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from forkdecode.config import DEFAULT_MODEL, EngineConfig
from forkdecode.engine.sizing import Capacity
from forkdecode.errors import invalid
from forkdecode.llm.assembly import Assembler
from forkdecode.llm.resolve import Resolver
from forkdecode.llm.start import RunningEngine, start_engine
from forkdecode.model.info import ModelInfo
from forkdecode.model.loader import adopt, load
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.scheduler.stats import EngineStats
from forkdecode.types import Greedy, Options, Prompt, Strategy, make_options


class Session:
    """An engine with the means to feed it. Everything here may be called from any thread."""

    def __init__(
        self,
        model: str | PreTrainedModel,
        tokenizer: Any | None,
        dtype: str,
        device: str,
        threads: int | None,
        config: dict[str, Any],
    ) -> None:
        settings = make_config(config)
        if isinstance(model, PreTrainedModel):
            loaded = adopt(model, tokenizer, dtype, device)
        else:
            loaded = load(model, dtype, device)
        self.engine: RunningEngine = start_engine(loaded, settings, threads)
        self._resolver = Resolver(loaded.tokenizer, loaded.info)
        self._numbers = itertools.count(1)

    @property
    def info(self) -> ModelInfo:
        return self.engine.info

    @property
    def capacity(self) -> Capacity:
        return self.engine.capacity

    def stats(self) -> EngineStats:
        return self.engine.thread.stats()

    def close(self) -> None:
        self.engine.thread.close()

    def request(
        self,
        prompt: Prompt,
        strategy: Strategy | None,
        options: Options | None,
        given: dict[str, Any],
        *,
        chat: bool,
        request_id: str | None,
        stream: bool,
    ) -> tuple[DecodeRequest, Assembler]:
        """A checked request and what makes text of its events. Raises InvalidRequestError."""
        name = request_id if request_id is not None else f"request-{next(self._numbers)}"
        if not isinstance(name, str) or not name:
            raise invalid("request_id", f"{request_id!r} is not usable", "a non-empty text")
        if options is not None and given:
            raise invalid(min(given), "stands beside an Options object", "either options= or keywords")
        request = self._resolver.resolve(
            prompt,
            Greedy() if strategy is None else strategy,
            make_options(given) if options is None else options,
            request_id=name,
            chat=chat,
            stream=stream,
        )
        return request, Assembler(request, self._resolver.token_bytes())


def make_config(given: dict[str, Any]) -> EngineConfig:
    """EngineConfig from keyword arguments; an unknown name is refused by name."""
    names = EngineConfig.__slots__
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise invalid(unknown[0], "is not a setting of the engine", ", ".join(names))
    return EngineConfig(**given)


def is_batch(prompt: Any) -> bool:
    """Whether `prompt` is a list of prompts: of texts, of token id lists, or of chats. A list of
    integers is one prompt, a list of messages is one chat."""
    if isinstance(prompt, (str, bytes)) or not isinstance(prompt, Sequence) or not len(prompt):
        return isinstance(prompt, Sequence) and not isinstance(prompt, (str, bytes)) and not len(prompt)
    return isinstance(prompt[0], str) or (
        isinstance(prompt[0], Sequence) and not isinstance(prompt[0], bytes)
    )


def spread(field: str, value: Any, count: int) -> list[Any]:
    """One value for each of `count` prompts: a list as it is, anything else repeated."""
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise invalid(field, f"is a list of {len(value)} for {count} prompts", "one value, or one a prompt")
    return list(value)


__all__ = ["DEFAULT_MODEL", "Session", "is_batch", "make_config", "spread"]
