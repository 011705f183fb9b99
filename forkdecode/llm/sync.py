"""The in-process SDK for threads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, overload

from transformers import PreTrainedModel

from forkdecode.calls.arguments import is_batch
from forkdecode.calls.handle import EventStream, Handle
from forkdecode.config import DEFAULT_MODEL
from forkdecode.engine.port import Job
from forkdecode.engine.sizing import Capacity
from forkdecode.llm.session import ModelChoice, Session
from forkdecode.model.info import ModelInfo
from forkdecode.requests.prepare import Prepared
from forkdecode.results import DecodeResult, EngineStats, ScoreResult
from forkdecode.types import Options, Prompt, Strategy


class LLM:
    """A model with an engine of its own, in this process. Safe to use from several threads.

    model: the default model's name, a folder, a .gguf file, a hub id, or a transformers model (with
    its tokenizer). dtype: "auto", "float32", "bfloat16", "float16". threads: torch's threads, the
    usable cores by default. max_positions: serve fewer positions than the model has; rope types
    "dynamic" and "longrope" need it. Other keywords are EngineConfig's: block_size, kv_memory, ...

    Raises ModelLoadError for a model that can't be had or served, CapacityError when the KV cache
    does not fit, InvalidRequestError for a wrong setting.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | PreTrainedModel = DEFAULT_MODEL,
        *,
        tokenizer: Any | None = None,
        dtype: str = "auto",
        device: str = "auto",
        threads: int | None = None,
        max_positions: int | None = None,
        **config: Any,
    ) -> None:
        choice = ModelChoice(model, tokenizer, dtype, device, threads, max_positions)
        self._session = Session(choice, config)

    @property
    def info(self) -> ModelInfo:
        """What was loaded."""
        return self._session.engine.info

    @property
    def tokenizer(self) -> Any | None:
        """transformers' tokenizer of the model, or None."""
        return self._session.engine.tokenizer

    @property
    def capacity(self) -> Capacity:
        """The block pool."""
        return self._session.engine.capacity

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
        prepared = self._session.requests.prepare_all(
            prompt, strategy, options, given, chat=chat, request_id=request_id
        )
        results = self._wait(self._start(prepared))
        return results if is_batch(prompt) else results[0]

    def stream(
        self,
        prompt: Prompt,
        strategy: Strategy | None = None,
        *,
        options: Options | None = None,
        chat: bool = False,
        request_id: str | None = None,
        **given: Any,
    ) -> EventStream:
        """Typed events of one request as they happen; the last is Finished. Closing the stream, or
        dropping it, cancels the request. Raises as decode() does, wrong requests at once."""
        prepared = self._session.requests.prepare(
            prompt, strategy, options, given, chat=chat, request_id=request_id, stream=True
        )
        return EventStream(self._start([prepared])[0])

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
        last. Raises InvalidRequestError, and CapacityError for what can never be served here."""
        prepared = self._session.requests.prepare(
            prompt, strategy, options, given, chat=chat, request_id=request_id, stream=stream
        )
        return self._start([prepared])[0]

    def score(
        self,
        prompt: Prompt,
        continuations: Sequence[str | Sequence[int]],
        *,
        top_logprobs: int = 0,
        chat: bool = False,
        priority: int = 0,
        cache_salt: str = "",
        request_id: str | None = None,
    ) -> ScoreResult:
        """How likely the model finds each of several continuations of one prompt, which is computed
        and stored once; waits.

        continuations: texts or token ids; a text is tokenized by itself, without special tokens.
        top_logprobs: how many of the likeliest tokens of each position to report besides. Nothing is
        sampled and nothing ends early: log-probabilities are the model's own, of every token given.

        Raises InvalidRequestError naming the argument, CapacityError, GroupFailedError.
        """
        engine = self._session.engine.thread
        prepared = self._session.requests.prepare_score(
            prompt,
            continuations,
            top_logprobs=top_logprobs,
            chat=chat,
            priority=priority,
            cache_salt=cache_salt,
            request_id=request_id,
        )
        answer = prepared.send(engine)
        try:
            return prepared.assembler.result(answer.result())
        except BaseException:
            engine.cancel(prepared.request)
            raise

    def stats(self) -> EngineStats:
        """What the engine is doing and has done."""
        return self._session.engine.thread.stats()

    def close(self) -> None:
        """Stops the engine; running requests end with EngineClosedError. Idempotent."""
        self._session.engine.thread.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, prepared: Sequence[Prepared]) -> list[Handle]:
        thread = self._session.engine.thread
        handles = [
            Handle(one.request.request_id, one.assembler.events, partial(thread.cancel, one.request))
            for one in prepared
        ]
        thread.submit([Job(one.request, handle.put) for one, handle in zip(prepared, handles, strict=True)])
        return handles

    def _wait(self, handles: list[Handle]) -> list[DecodeResult]:
        try:
            return [handle.result() for handle in handles]
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise
