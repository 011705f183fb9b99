"""The in-process SDK for threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, overload

from transformers import PreTrainedModel

from forkdecode.config import DEFAULT_MODEL
from forkdecode.engine.sizing import Capacity
from forkdecode.llm.handle import Handle
from forkdecode.llm.requests import Session, is_batch, spread
from forkdecode.model.info import ModelInfo
from forkdecode.scheduler.stats import EngineStats
from forkdecode.types import DecodeResult, Event, Options, Prompt, Strategy


class LLM:
    """A model with an engine of its own, in this process. Safe to use from several threads.

    model: the default model's name, a folder, a .gguf file, a hub id, or a transformers model (with
    its tokenizer). dtype: "auto", "float32", "bfloat16", "float16". threads: torch's threads, the
    usable cores by default. Other keywords are EngineConfig's: block_size, kv_memory, ...

    Raises ModelLoadError for a model that can't be had or served, CapacityError when the KV cache
    does not fit, InvalidRequestError for a wrong setting.
    """

    def __init__(
        self,
        model: str | PreTrainedModel = DEFAULT_MODEL,
        *,
        tokenizer: Any | None = None,
        dtype: str = "auto",
        device: str = "auto",
        threads: int | None = None,
        **config: Any,
    ) -> None:
        self._session = Session(model, tokenizer, dtype, device, threads, config)

    @property
    def info(self) -> ModelInfo:
        """What was loaded."""
        return self._session.info

    @property
    def tokenizer(self) -> Any | None:
        """transformers' tokenizer of the model, or None."""
        return self._session.engine.tokenizer

    @property
    def capacity(self) -> Capacity:
        """The block pool."""
        return self._session.capacity

    @overload
    def decode(
        self,
        prompt: str | Sequence[int] | Sequence[dict[str, Any]],
        strategy: Strategy | None = None,
        *,
        options: Options | None = None,
        chat: bool = False,
        request_id: str | None = None,
        **given: Any,
    ) -> DecodeResult: ...

    @overload
    def decode(
        self,
        prompt: Sequence[Prompt],
        strategy: Strategy | Sequence[Strategy] | None = None,
        *,
        options: Options | Sequence[Options] | None = None,
        chat: bool = False,
        request_id: Sequence[str] | None = None,
        **given: Any,
    ) -> list[DecodeResult]: ...

    def decode(
        self,
        prompt: Any,
        strategy: Any = None,
        *,
        options: Any = None,
        chat: bool = False,
        request_id: Any = None,
        **given: Any,
    ) -> DecodeResult | list[DecodeResult]:
        """Decodes a prompt, or a list of prompts in one batch, and waits.

        prompt: text, token ids or chat messages. strategy: Greedy() by default; for a list of
        prompts one, or one each. Options are given as keywords (max_tokens=64, stop=["\\n"], ...) or
        as an Options object. chat: texts are user messages, by the model's chat template.

        Raises InvalidRequestError naming the field, CapacityError, GroupFailedError. In a batch all
        requests are checked before the first is sent; the first error ends the others.
        """
        if not is_batch(prompt):
            handle = self._send(prompt, strategy, options, given, chat, request_id, stream=False)
            return self._wait([handle])[0]
        count = len(prompt)
        ids = [None] * count if request_id is None else spread("request_id", request_id, count)
        made = [
            self._session.request(p, s, o, given, chat=chat, request_id=i, stream=False)
            for p, s, o, i in zip(
                prompt,
                spread("strategy", strategy, count),
                spread("options", options, count),
                ids,
                strict=True,
            )
        ]
        return self._wait([self._start(*one) for one in made])

    def stream(
        self,
        prompt: Prompt,
        strategy: Strategy | None = None,
        *,
        options: Options | None = None,
        chat: bool = False,
        request_id: str | None = None,
        **given: Any,
    ) -> Iterator[Event]:
        """Typed events of one request as they happen; the last is Finished. Closing the iterator
        cancels the request. Raises as decode() does, wrong requests at once."""
        handle = self._send(prompt, strategy, options, given, chat, request_id, stream=True)
        return _events(handle)

    def submit(
        self,
        prompt: Prompt,
        strategy: Strategy | None = None,
        *,
        options: Options | None = None,
        chat: bool = False,
        request_id: str | None = None,
        stream: bool = False,
        **given: Any,
    ) -> Handle:
        """Sends a request and returns at once. stream: whether the handle yields events before the
        last."""
        return self._send(prompt, strategy, options, given, chat, request_id, stream=stream)

    def stats(self) -> EngineStats:
        """What the engine is doing and has done."""
        return self._session.stats()

    def close(self) -> None:
        """Stops the engine; running requests end with EngineClosedError. Idempotent."""
        self._session.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(
        self,
        prompt: Any,
        strategy: Any,
        options: Any,
        given: dict[str, Any],
        chat: bool,
        request_id: Any,
        *,
        stream: bool,
    ) -> Handle:
        made = self._session.request(
            prompt, strategy, options, given, chat=chat, request_id=request_id, stream=stream
        )
        return self._start(*made)

    def _start(self, request: Any, assembler: Any) -> Handle:
        handle = Handle(request.request_id, assembler, self._session.engine.thread)
        self._session.engine.thread.submit(request, handle.sink)
        return handle

    def _wait(self, handles: list[Handle]) -> list[DecodeResult]:
        try:
            return [handle.result() for handle in handles]
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise


def _events(handle: Handle) -> Iterator[Event]:
    try:
        yield from handle
    finally:
        handle.cancel()
