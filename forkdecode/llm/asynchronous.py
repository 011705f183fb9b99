"""The in-process SDK for event loops: the methods of LLM, awaited."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, NoReturn, Unpack, overload

import torch
from transformers import PreTrainedModel

from forkdecode.calls.arguments import is_batch
from forkdecode.calls.handle import AsyncHandle
from forkdecode.calls.many import ManyKeywords, in_order_async, list_calls
from forkdecode.calls.tree import AsyncTree
from forkdecode.config import DEFAULT_MODEL, DType, EngineKeywords
from forkdecode.constraints.catalogue import Catalogue
from forkdecode.constraints.catalogues import Catalogues
from forkdecode.engine.port import Job
from forkdecode.engine.sizing import Capacity
from forkdecode.errors import ForkdecodeError
from forkdecode.llm.session import LlmKeywords, ModelChoice, Session
from forkdecode.model.info import ModelInfo
from forkdecode.requests.prepare import Prepared
from forkdecode.requests.score import send_scores
from forkdecode.results import DecodeResult, EngineStats, Event, ScoreResult
from forkdecode.tree.local import AsyncLocalLink
from forkdecode.tree_types import OpenTree, TreeLimits
from forkdecode.types import Continuation, OptionKeywords, Options, Prompt, Strategy


class AsyncLLM:
    """LLM for asyncio: the same arguments, results and errors. Loading happens in the constructor;
    use `await AsyncLLM.create(...)` not to block the loop with it."""

    def __init__(
        self,
        model: str | os.PathLike[str] | PreTrainedModel = DEFAULT_MODEL,
        *,
        tokenizer: Any | None = None,
        dtype: DType = "auto",
        device: str = "auto",
        threads: int | None = None,
        max_positions: int | None = None,
        catalogues: Mapping[str, Catalogue | str | os.PathLike[str]] | None = None,
        **config: Unpack[EngineKeywords],
    ) -> None:
        choice = ModelChoice(model, tokenizer, dtype, device, threads, max_positions)
        self._session = Session(choice, config, catalogues)

    def __reduce__(self) -> NoReturn:
        """A shallow copy would be a second owner of the engine."""
        self._session.engine.thread.__reduce__()

    @classmethod
    async def create(
        cls,
        model: str | os.PathLike[str] | PreTrainedModel = DEFAULT_MODEL,
        **settings: Unpack[LlmKeywords],
    ) -> AsyncLLM:
        """Loads in a worker thread."""
        return await asyncio.to_thread(lambda: cls(model, **settings))

    @property
    def info(self) -> ModelInfo:
        """What was loaded."""
        return self._session.engine.info

    @property
    def tokenizer(self) -> Any | None:
        """transformers' tokenizer of the model, or None."""
        return self._session.engine.tokenizer

    @property
    def catalogues(self) -> Catalogues:
        """What FromCatalogue can name; may be changed while requests run, which keep theirs."""
        return self._session.catalogues

    @property
    def capacity(self) -> Capacity:
        """The block pool."""
        return self._session.engine.capacity

    @overload
    async def decode(  # type: ignore[overload-overlap]  # a text is a Sequence[str]
        self,
        prompt: Prompt,
        strategy: Strategy | None = None,
        *,
        options: Options | None = None,
        chat: bool = False,
        request_id: str | None = None,
        **given: Unpack[OptionKeywords],
    ) -> DecodeResult: ...

    @overload
    async def decode(
        self,
        prompt: Sequence[Prompt],
        strategy: Strategy | Sequence[Strategy] | None = None,
        *,
        options: Options | Sequence[Options] | None = None,
        chat: bool = False,
        request_id: Sequence[str] | None = None,
        **given: Unpack[OptionKeywords],
    ) -> list[DecodeResult]: ...

    async def decode(
        self,
        prompt: Any,
        strategy: Any = None,
        *,
        options: Any = None,
        chat: bool = False,
        request_id: Any = None,
        **given: Unpack[OptionKeywords],
    ) -> DecodeResult | list[DecodeResult]:
        """LLM.decode, awaited: a DecodeResult, or a list of them for a list of prompts. Cancelling
        the await cancels the requests."""
        prepared = await asyncio.to_thread(
            self._session.requests.prepare_all,
            prompt,
            strategy,
            options,
            given,
            chat=chat,
            request_id=request_id,
        )
        handles = self._start(prepared)
        try:
            results = [await handle.result() for handle in handles]
        finally:
            for handle in handles:
                handle.cancel()
        return results if is_batch(prompt) else results[0]

    async def stream(
        self,
        prompt: Prompt,
        strategy: Strategy | None = None,
        *,
        options: Options | None = None,
        chat: bool = False,
        request_id: str | None = None,
        **given: Unpack[OptionKeywords],
    ) -> AsyncGenerator[Event, None]:
        """LLM.stream as an async generator: the request is sent when it is first asked for an event.
        Closing it, dropping it, or cancelling who waits for it cancels the request."""
        handle = await self.submit(
            prompt, strategy, options=options, chat=chat, request_id=request_id, stream=True, **given
        )
        try:
            async for event in handle:
                yield event
        finally:
            handle.cancel()

    async def submit(
        self,
        prompt: Prompt,
        strategy: Strategy | None = None,
        *,
        options: Options | None = None,
        chat: bool = False,
        request_id: str | None = None,
        stream: bool = False,
        **given: Unpack[OptionKeywords],
    ) -> AsyncHandle:
        """LLM.submit, awaited. Tokenising happens in a worker thread."""
        prepared = await asyncio.to_thread(
            self._session.requests.prepare,
            prompt,
            strategy,
            options,
            given,
            chat=chat,
            request_id=request_id,
            stream=stream,
        )
        return self._start([prepared])[0]

    @overload
    def decode_many(
        self,
        prompts: Iterable[Prompt],
        strategy: Strategy | Sequence[Strategy] | None = None,
        *,
        return_errors: Literal[False] = False,
        **given: Unpack[ManyKeywords],
    ) -> AsyncGenerator[DecodeResult, None]: ...

    @overload
    def decode_many(
        self,
        prompts: Iterable[Prompt],
        strategy: Strategy | Sequence[Strategy] | None = None,
        *,
        return_errors: bool,
        **given: Unpack[ManyKeywords],
    ) -> AsyncGenerator[DecodeResult | ForkdecodeError, None]: ...

    def decode_many(
        self,
        prompts: Iterable[Prompt],
        strategy: Strategy | Sequence[Strategy] | None = None,
        *,
        options: Options | Sequence[Options] | None = None,
        chat: bool = False,
        request_id: Sequence[str] | None = None,
        concurrency: int = 16,
        progress: bool = True,
        return_errors: bool = False,
        **given: Unpack[OptionKeywords],
    ) -> AsyncGenerator[DecodeResult | ForkdecodeError, None]:
        """LLM.decode_many as an async generator."""

        async def decode(prompt: Any, strategy: Any, options: Any, name: Any) -> DecodeResult:
            handle = await self.submit(prompt, strategy, options=options, chat=chat, request_id=name, **given)
            return await handle.result()

        calls = list_calls(prompts, strategy, options, request_id)
        return in_order_async(decode, calls, concurrency, progress, return_errors=return_errors)

    async def tokenize(self, prompt: Prompt, *, chat: bool = False) -> tuple[int, ...]:
        """LLM.tokenize, in a worker thread."""
        return await asyncio.to_thread(self._session.requests.tokenize, prompt, chat=chat)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """LLM.detokenize, in a worker thread."""
        return await asyncio.to_thread(self._session.requests.detokenize, token_ids)

    @overload
    async def score(  # type: ignore[overload-overlap]  # a text is a Sequence[str]
        self,
        prompt: Prompt,
        continuations: Sequence[Continuation],
        *,
        top_logprobs: int = 0,
        chat: bool = False,
        priority: int = 0,
        cache_salt: str = "",
        request_id: str | None = None,
    ) -> ScoreResult: ...

    @overload
    async def score(
        self,
        prompt: Sequence[Prompt],
        continuations: Sequence[Continuation] | Sequence[Sequence[Continuation]],
        *,
        top_logprobs: int = 0,
        chat: bool = False,
        priority: int = 0,
        cache_salt: str = "",
        request_id: Sequence[str] | None = None,
    ) -> list[ScoreResult]: ...

    async def score(
        self,
        prompt: Any,
        continuations: Any,
        *,
        top_logprobs: int = 0,
        chat: bool = False,
        priority: int = 0,
        cache_salt: str = "",
        request_id: Any = None,
    ) -> ScoreResult | list[ScoreResult]:
        """LLM.score, awaited. Cancelling the await cancels the requests."""
        engine = self._session.engine.thread
        prepared = await asyncio.to_thread(
            self._session.requests.prepare_scores,
            prompt,
            continuations,
            top_logprobs=top_logprobs,
            chat=chat,
            priority=priority,
            cache_salt=cache_salt,
            request_id=request_id,
        )
        answers = send_scores(engine, prepared)
        try:
            results = [
                one.assembler.result(await asyncio.wrap_future(answer))
                for one, answer in zip(prepared, answers, strict=True)
            ]
        except BaseException:
            for one in prepared:
                engine.cancel(one.request)
            raise
        return results if is_batch(prompt) else results[0]

    async def tree(
        self,
        prompt: Prompt | None = None,
        *,
        chat: bool = False,
        seed: int | None = None,
        cache_salt: str = "",
        limits: TreeLimits | None = None,
    ) -> AsyncTree:
        """LLM.tree, awaited."""
        opening = OpenTree(prompt, chat, seed, cache_salt)
        link = await AsyncLocalLink.open(self._session.opener(opening, limits))
        return await AsyncTree.create(link)

    async def update_weights(
        self, weights: str | os.PathLike[str] | PreTrainedModel | Mapping[str, torch.Tensor]
    ) -> None:
        """LLM.update_weights, in a worker thread. Cancelling the await does not stop it."""
        self._session.engine.thread.check_caller()
        await asyncio.to_thread(self._session.engine.weights.update, weights)

    async def stats(self) -> EngineStats:
        """What the engine is doing and has done."""
        self._session.engine.thread.check_caller()
        return await asyncio.to_thread(self._session.engine.thread.stats)

    async def close(self) -> None:
        """Stops the engine; running requests end with EngineClosedError. Idempotent."""
        self._session.engine.thread.hang_up()
        await asyncio.to_thread(self._session.close)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _start(self, prepared: Sequence[Prepared]) -> list[AsyncHandle]:
        thread = self._session.engine.thread
        handles = [
            AsyncHandle(one.request.request_id, one.assembler.events, partial(thread.cancel, one.request))
            for one in prepared
        ]
        thread.submit([Job(one.request, handle.put) for one, handle in zip(prepared, handles, strict=True)])
        return handles
