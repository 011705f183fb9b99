"""The remote SDK for event loops: the methods of AsyncLLM."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, Unpack, overload

from forkdecode.calls.arguments import is_batch
from forkdecode.calls.handle import AsyncHandle
from forkdecode.calls.many import in_order_async, list_calls
from forkdecode.calls.timeout import check_timeout
from forkdecode.calls.tree import AsyncTree
from forkdecode.client.address import DEFAULT_ADDRESS
from forkdecode.client.settings import ClientKeywords, RemoteManyKeywords, Settings, Tls
from forkdecode.client.siblings import Siblings
from forkdecode.client.transport import Transport
from forkdecode.client.tree_links import AsyncRemoteLink
from forkdecode.client.writer import Letter, Writer, detokenize_request, open_tree, read_events, resume_tree
from forkdecode.errors import ForkdecodeError, UnavailableError
from forkdecode.results import DecodeResult, EngineStats, Event, ScoreResult, ServedModel
from forkdecode.rpc.convert_events import engine_stats, score_result, served_model
from forkdecode.rpc.convert_prompts import prompt_message
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.tree_types import TreeLimits
from forkdecode.types import Continuation, OptionKeywords, Options, Prompt, Strategy


class AsyncClient:
    """Client for asyncio: the same arguments, results and errors. Belongs to the event loop that first uses
    it, and to one process; see Client."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        timeout: float | None = None,
        retries: int = 5,
    ) -> None:
        self._settings = Settings(address, token, tls, timeout, retries)
        self._transport = Transport(self._settings)
        self._writer = Writer()
        self._info: ServedModel | None = None

    @property
    def address(self) -> str:
        """The address of the server."""
        return self._settings.address

    @classmethod
    async def create(cls, address: str = DEFAULT_ADDRESS, **settings: Unpack[ClientKeywords]) -> AsyncClient:
        """Connects, and asks which model is served."""
        client = cls(address, **settings)
        try:
            await client.model()
        except BaseException:
            await client.close()
            raise
        return client

    @property
    def info(self) -> ServedModel:
        """The model that is served and the server's limits, as last returned by `create` or `model`."""
        if self._info is None:
            raise UnavailableError("the server has not been asked yet: await model(), or create()")
        return self._info

    async def model(self) -> ServedModel:
        """The model that is served, and the server's limits."""
        self._info = served_model(await self._ask("GetModel", pb.GetModelRequest()))
        return self._info

    @overload
    async def decode(  # type: ignore[overload-overlap]  # a text is a Sequence[str]
        self,
        prompt: Prompt,
        strategy: Strategy | None = None,
        *,
        options: Options | None = None,
        chat: bool = False,
        request_id: str | None = None,
        timeout: float | None = None,
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
        timeout: float | None = None,
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
        timeout: float | None = None,
        **given: Unpack[OptionKeywords],
    ) -> DecodeResult | list[DecodeResult]:
        """Client.decode, awaited: a DecodeResult, or a list of them for a list of prompts. Cancelling
        the await cancels the requests."""
        letters = self._writer.decode_all(prompt, strategy, options, given, chat=chat, request_id=request_id)
        seconds = self._seconds(timeout)
        siblings = Siblings()
        handles = [self._start(letter, seconds, siblings) for letter in letters]
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
        timeout: float | None = None,
        **given: Unpack[OptionKeywords],
    ) -> AsyncGenerator[Event, None]:
        """Client.stream as an async generator: the request is sent when the first event is requested. Closing
        it, dropping it, or cancelling the task that waits for it cancels the request."""
        handle = await self.submit(
            prompt,
            strategy,
            options=options,
            chat=chat,
            request_id=request_id,
            stream=True,
            timeout=timeout,
            **given,
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
        timeout: float | None = None,
        **given: Unpack[OptionKeywords],
    ) -> AsyncHandle:
        """Client.submit; the request has been sent on its way when this returns."""
        letter = self._writer.decode(
            prompt, strategy, options, given, chat=chat, request_id=request_id, stream=stream
        )
        return self._start(letter, self._seconds(timeout))

    @overload
    def decode_many(
        self,
        prompts: Iterable[Prompt],
        strategy: Strategy | Sequence[Strategy] | None = None,
        *,
        return_errors: Literal[False] = False,
        **given: Unpack[RemoteManyKeywords],
    ) -> AsyncGenerator[DecodeResult, None]: ...

    @overload
    def decode_many(
        self,
        prompts: Iterable[Prompt],
        strategy: Strategy | Sequence[Strategy] | None = None,
        *,
        return_errors: bool,
        **given: Unpack[RemoteManyKeywords],
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
        timeout: float | None = None,
        **given: Unpack[OptionKeywords],
    ) -> AsyncGenerator[DecodeResult | ForkdecodeError, None]:
        """Client.decode_many as an async generator."""

        seconds, siblings = self._seconds(timeout), Siblings()

        async def decode(prompt: Any, strategy: Any, options: Any, name: Any) -> DecodeResult:
            letter = self._writer.decode(prompt, strategy, options, given, chat=chat, request_id=name)
            return await self._start(letter, seconds, siblings).result()

        calls = list_calls(prompts, strategy, options, request_id)
        return in_order_async(decode, calls, concurrency, progress, return_errors=return_errors)

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
        timeout: float | None = None,
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
        timeout: float | None = None,
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
        timeout: float | None = None,
    ) -> ScoreResult | list[ScoreResult]:
        """Client.score, awaited."""
        messages = self._writer.score_all(
            prompt,
            continuations,
            top_logprobs=top_logprobs,
            chat=chat,
            priority=priority,
            cache_salt=cache_salt,
            request_id=request_id,
        )
        answers = await self._transport.unary_all("Score", messages, self._seconds(timeout))
        results = [score_result(answer) for answer in answers]
        return results if is_batch(prompt) else results[0]

    async def tree(
        self,
        prompt: Prompt | None = None,
        *,
        chat: bool = False,
        seed: int | None = None,
        cache_salt: str = "",
        limits: TreeLimits | None = None,
        timeout: float | None = None,
    ) -> AsyncTree:
        """Client.tree, awaited."""
        begin = open_tree(prompt, chat=chat, seed=seed, cache_salt=cache_salt, limits=limits)
        return await self._tree(begin, timeout)

    async def resume_tree(self, name: str, secret: str, *, timeout: float | None = None) -> AsyncTree:
        """Client.resume_tree, awaited."""
        return await self._tree(resume_tree(name, secret), timeout)

    async def tokenize(
        self, prompt: Prompt, *, chat: bool = False, timeout: float | None = None
    ) -> tuple[int, ...]:
        """Client.tokenize, awaited."""
        message = pb.TokenizeRequest(prompt=prompt_message(prompt, chat=chat))
        return tuple((await self._ask("Tokenize", message, timeout)).token_ids)

    async def detokenize(self, token_ids: Sequence[int], *, timeout: float | None = None) -> str:
        """Client.detokenize, awaited."""
        return str((await self._ask("Detokenize", detokenize_request(token_ids), timeout)).text)

    async def stats(self, *, timeout: float | None = None) -> EngineStats:
        """The state and the counters of the engine."""
        return engine_stats(await self._ask("GetStats", pb.GetStatsRequest(), timeout))

    async def close(self) -> None:
        """Closes the connection; requests still running here end with EngineClosedError. Idempotent."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _seconds(self, timeout: float | None) -> float | None:
        return self._settings.timeout if timeout is None else check_timeout("timeout", timeout)

    async def _ask(self, method: str, message: Any, timeout: float | None = None) -> Any:
        return await self._transport.unary(method, message, self._seconds(timeout))

    async def _tree(self, begin: pb.TreeCommand, timeout: float | None) -> AsyncTree:
        link = await AsyncRemoteLink.open(self, self._transport, begin, self._seconds(timeout))
        return await AsyncTree.create(link, self._settings.timeout)

    def _start(self, letter: Letter, timeout: float | None, siblings: Siblings | None = None) -> AsyncHandle:
        sending = _Sending()
        handle = AsyncHandle(letter.request_id, read_events, sending.cancel)
        sending.task = self._transport.start(letter, handle.put_here, timeout, siblings)
        return handle


class _Sending:
    """What a handle cancels."""

    def __init__(self) -> None:
        self.task: Any = None

    def cancel(self) -> None:
        self.task.cancel()
