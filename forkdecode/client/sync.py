"""The remote SDK for threads: the methods of LLM."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, Unpack, overload

from forkdecode.calls.arguments import is_batch
from forkdecode.calls.handle import EventStream, Handle
from forkdecode.calls.many import in_order
from forkdecode.calls.timeout import check_timeout
from forkdecode.calls.tree import Tree
from forkdecode.client.address import DEFAULT_ADDRESS
from forkdecode.client.sending import Link, Sending
from forkdecode.client.settings import RemoteManyKeywords, Settings, Tls
from forkdecode.client.siblings import Siblings
from forkdecode.client.tree_links import RemoteLink
from forkdecode.client.writer import Letter, Writer, detokenize_request, open_tree, read_events, resume_tree
from forkdecode.errors import ForkdecodeError
from forkdecode.results import DecodeResult, EngineStats, ScoreResult, ServedModel
from forkdecode.rpc.convert_events import engine_stats, score_result, served_model
from forkdecode.rpc.convert_prompts import prompt_message
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.tree_types import TreeLimits
from forkdecode.types import Continuation, OptionKeywords, Options, Prompt, Strategy


class Client:
    """A forkdecode server, used like an LLM: the same methods, arguments, results and errors.

    address: "host:port", or another name that gRPC understands. token: sent with every call; over a network
    only with tls. timeout: seconds for each request, None for no limit; it becomes the call's deadline, and
    raises DeadlineError, a TimeoutError, when it expires. retries: how often a call is retried while nothing
    of it has arrived: the server is not reachable, is restarting, or says when to come back. Waits double
    from 0.1 s to 5 s, or are as long as the server asks for.

    Safe to use from several threads, but not across fork(): in a child of a process that has used a client it
    raises UnavailableError; spawn the child instead. It connects when it is first used, and reconnects by
    itself. Raises InvalidRequestError for a wrong setting.
    """

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
        self._link = Link(self._settings)
        self._writer = Writer()
        self._info: ServedModel | None = None

    @property
    def address(self) -> str:
        """The address of the server."""
        return self._settings.address

    @property
    def info(self) -> ServedModel:
        """The model that is served, and the server's limits; asked for once."""
        if self._info is None:
            self._info = served_model(self._ask("GetModel", pb.GetModelRequest()))
        return self._info

    @overload
    def decode(  # type: ignore[overload-overlap]  # a text is a Sequence[str]
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
    def decode(
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

    def decode(
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
        """LLM.decode through the server. timeout: instead of the client's.

        Raises InvalidRequestError naming the field, CapacityError, QueueFullError, GroupFailedError,
        UnavailableError, AuthenticationError, DeadlineError. All prompts of a list are sent at once; the
        first error ends the others.
        """
        letters = self._writer.decode_all(prompt, strategy, options, given, chat=chat, request_id=request_id)
        seconds = self._seconds(timeout)
        siblings = Siblings()
        handles = [self._start(letter, seconds, siblings=siblings) for letter in letters]
        try:
            results = [handle.result() for handle in handles]
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise
        return results if is_batch(prompt) else results[0]

    def stream(
        self,
        prompt: Prompt,
        strategy: Strategy | None = None,
        *,
        options: Options | None = None,
        chat: bool = False,
        request_id: str | None = None,
        timeout: float | None = None,
        **given: Unpack[OptionKeywords],
    ) -> EventStream:
        """Typed events of one request as they arrive; the last is Finished. On a busy network several steps
        may arrive as one event. Closing or dropping the stream cancels the request."""
        letter = self._writer.decode(
            prompt, strategy, options, given, chat=chat, request_id=request_id, stream=True
        )
        return EventStream(self._start(letter, self._seconds(timeout)))

    def submit(
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
    ) -> Handle:
        """Sends a request and returns at once. stream: whether the handle yields events before the last.
        Errors that only the server can detect are raised by the handle."""
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
    ) -> Generator[DecodeResult, None, None]: ...

    @overload
    def decode_many(
        self,
        prompts: Iterable[Prompt],
        strategy: Strategy | Sequence[Strategy] | None = None,
        *,
        return_errors: bool,
        **given: Unpack[RemoteManyKeywords],
    ) -> Generator[DecodeResult | ForkdecodeError, None, None]: ...

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
    ) -> Generator[DecodeResult | ForkdecodeError, None, None]:
        """LLM.decode_many through the server: the results of many prompts, in their order, with at most
        `concurrency` of them running at a time."""
        seconds, siblings = self._seconds(timeout), Siblings()

        def start(prompt: Any, strategy: Any, options: Any, name: Any, heard: Callable[[], None]) -> Handle:
            letter = self._writer.decode(prompt, strategy, options, given, chat=chat, request_id=name)
            return self._start(letter, seconds, heard, siblings)

        return in_order(
            start, prompts, strategy, options, request_id, concurrency, progress, return_errors=return_errors
        )

    @overload
    def score(  # type: ignore[overload-overlap]  # a text is a Sequence[str]
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
    def score(
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

    def score(
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
        """LLM.score through the server: the log-likelihood of each continuation of a prompt, or of each of a
        list of prompts, which are sent all at once. timeout: for each of them."""
        messages = self._writer.score_all(
            prompt,
            continuations,
            top_logprobs=top_logprobs,
            chat=chat,
            priority=priority,
            cache_salt=cache_salt,
            request_id=request_id,
        )
        seconds, link = self._seconds(timeout), self._link
        answers = link.loop.call(lambda: link.transport.unary_all("Score", messages, seconds))
        results = [score_result(answer) for answer in answers]
        return results if is_batch(prompt) else results[0]

    def tree(
        self,
        prompt: Prompt | None = None,
        *,
        chat: bool = False,
        seed: int | None = None,
        cache_salt: str = "",
        limits: TreeLimits | None = None,
        timeout: float | None = None,
    ) -> Tree:
        """LLM.tree through the server. limits: what the session may hold; the server may lower them. timeout:
        seconds until it is open. Its methods have the client's: see Tree.timeout.

        The server ends a session that is unused for a while. When the connection is lost, the tree's methods
        raise UnavailableError, and the session is kept for a while: see resume_tree(). When the engine is
        lost, so is the session; what was exported can be imported into another.
        """
        begin = open_tree(prompt, chat=chat, seed=seed, cache_salt=cache_salt, limits=limits)
        return self._tree(begin, timeout)

    def resume_tree(self, name: str, secret: str, *, timeout: float | None = None) -> Tree:
        """Resumes a session whose connection was lost, opened by any client, by its tree.name and
        tree.secret. It includes what its nodes have generated in the meantime. Raises InvalidRequestError if
        the server no longer has it."""
        return self._tree(resume_tree(name, secret), timeout)

    def tokenize(
        self, prompt: Prompt, *, chat: bool = False, timeout: float | None = None
    ) -> tuple[int, ...]:
        """Token ids of a prompt as `decode` would see it, including special tokens."""
        message = pb.TokenizeRequest(prompt=prompt_message(prompt, chat=chat))
        return tuple(self._ask("Tokenize", message, timeout).token_ids)

    def detokenize(self, token_ids: Sequence[int], *, timeout: float | None = None) -> str:
        """The text of token ids; special tokens have none."""
        message = detokenize_request(token_ids)
        return str(self._ask("Detokenize", message, timeout).text)

    def stats(self, *, timeout: float | None = None) -> EngineStats:
        """What the engine is doing and has done."""
        return engine_stats(self._ask("GetStats", pb.GetStatsRequest(), timeout))

    def close(self) -> None:
        """Ends the connection; what still runs here ends with EngineClosedError. Idempotent."""
        self._link.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _seconds(self, timeout: float | None) -> float | None:
        return self._settings.timeout if timeout is None else check_timeout("timeout", timeout)

    def _ask(self, method: str, message: Any, timeout: float | None = None) -> Any:
        seconds = self._seconds(timeout)
        link = self._link
        return link.loop.call(lambda: link.transport.unary(method, message, seconds))

    def _tree(self, begin: pb.TreeCommand, timeout: float | None) -> Tree:
        link = self._link
        opened = RemoteLink(link, link.loop, link.transport, begin, self._seconds(timeout))
        return Tree(opened, self._settings.timeout)

    def _start(
        self,
        letter: Letter,
        timeout: float | None,
        heard: Callable[[], None] | None = None,
        siblings: Siblings | None = None,
    ) -> Handle:
        sending = Sending(self._link, letter, timeout, siblings)
        handle = Handle(letter.request_id, read_events, sending.cancel, heard)
        self._link.loop.post(partial(sending.begin, handle.put))
        return handle
