"""The in-process SDK for event loops: the verbs of LLM, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

from transformers import PreTrainedModel

from forkdecode.config import DEFAULT_MODEL
from forkdecode.engine.sizing import Capacity
from forkdecode.llm.handle import AsyncHandle
from forkdecode.llm.requests import Session, is_batch, spread
from forkdecode.model.info import ModelInfo
from forkdecode.scheduler.stats import EngineStats
from forkdecode.types import Event, Options, Prompt, Strategy


class AsyncLLM:
    """LLM for asyncio: the same arguments, results and errors. Loading happens in the constructor;
    use `await AsyncLLM.create(...)` not to block the loop with it."""

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

    @classmethod
    async def create(cls, model: str | PreTrainedModel = DEFAULT_MODEL, **settings: Any) -> AsyncLLM:
        """Loads in a worker thread."""
        return await asyncio.to_thread(cls, model, **settings)

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

    async def decode(
        self,
        prompt: Any,
        strategy: Any = None,
        *,
        options: Any = None,
        chat: bool = False,
        request_id: Any = None,
        **given: Any,
    ) -> Any:
        """LLM.decode, awaited: a DecodeResult, or a list of them for a list of prompts. Cancelling
        the await cancels the requests."""
        if not is_batch(prompt):
            handle = await self.submit(
                prompt, strategy, options=options, chat=chat, request_id=request_id, **given
            )
            return await handle.result()
        count = len(prompt)
        ids = [None] * count if request_id is None else spread("request_id", request_id, count)
        parts = zip(
            prompt, spread("strategy", strategy, count), spread("options", options, count), ids, strict=True
        )
        made = [
            await asyncio.to_thread(
                self._session.request, p, s, o, given, chat=chat, request_id=i, stream=False
            )
            for p, s, o, i in parts
        ]
        handles = [self._start(*one) for one in made]
        try:
            return [await handle.result() for handle in handles]
        finally:
            for handle in handles:
                handle.cancel()

    async def stream(
        self,
        prompt: Prompt,
        strategy: Strategy | None = None,
        *,
        options: Options | None = None,
        chat: bool = False,
        request_id: str | None = None,
        **given: Any,
    ) -> AsyncIterator[Event]:
        """LLM.stream as an async iterator. Closing or cancelling it cancels the request."""
        handle = await self.submit(
            prompt, strategy, options=options, chat=chat, request_id=request_id, stream=True, **given
        )
        async for event in handle:
            yield event

    async def submit(
        self,
        prompt: Prompt,
        strategy: Strategy | None = None,
        *,
        options: Options | None = None,
        chat: bool = False,
        request_id: str | None = None,
        stream: bool = False,
        **given: Any,
    ) -> AsyncHandle:
        """Sends a request. Tokenising happens in a worker thread."""
        made = await asyncio.to_thread(
            self._session.request,
            prompt,
            strategy,
            options,
            given,
            chat=chat,
            request_id=request_id,
            stream=stream,
        )
        return self._start(*made)

    async def stats(self) -> EngineStats:
        """What the engine is doing and has done."""
        return await asyncio.to_thread(self._session.stats)

    async def close(self) -> None:
        """Stops the engine; running requests end with EngineClosedError. Idempotent."""
        await asyncio.to_thread(self._session.close)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _start(self, request: Any, assembler: Any) -> AsyncHandle:
        handle = AsyncHandle(request.request_id, assembler, self._session.engine.thread)
        self._session.engine.thread.submit(request, handle.sink)
        return handle
