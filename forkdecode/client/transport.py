"""Calls of one client, in one event loop: attempts, deadlines, cancellation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc

from forkdecode.client.address import unknown_host
from forkdecode.client.attempts import Attempts
from forkdecode.client.failures import failure_of, unreadable
from forkdecode.client.settings import Settings
from forkdecode.client.siblings import Siblings
from forkdecode.client.tree_call import Put as PutTree
from forkdecode.client.tree_call import TreeCall
from forkdecode.client.tree_opening import TreeOpening
from forkdecode.client.writer import Inquiry, Letter
from forkdecode.errors import (
    CancelledError,
    DeadlineError,
    EngineClosedError,
    ForkdecodeError,
    QueueFullError,
    UnavailableError,
)
from forkdecode.results import Event, Finished
from forkdecode.rpc.convert_events import Events
from forkdecode.rpc.convert_tree_events import tree_events
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.rpc.v1.decode_pb2_grpc import DecodeServiceStub
from forkdecode.tree_types import TreeOpened

T = TypeVar("T")
Put: TypeAlias = Callable[[list[Event] | ForkdecodeError], None]
"""Takes a request's events; an error, or a list that ends with Finished, is the last. Must not block."""

_STATUS_SECONDS = 10.0
"""How long a server may take to end a call after its result."""
_LAST_STATUS = 1.0
"""The same once the client is closed."""


class Transport:
    """Belongs to the event loop that first uses it: all but the constructor runs there."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._tasks: set[asyncio.Task[Any]] = set()
        """Calls that have not ended, trees that are being opened."""
        self._trees: set[TreeCall] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._closed = False

    def __reduce__(self) -> NoReturn:
        """All that a client hands out holds its connection, which is of one process."""
        raise TypeError(
            "a connection cannot be copied or sent to another process, nor what holds it (a client, handle, "
            "stream or tree): make a client of its own there"
        )

    def start(
        self, letter: Letter, put: Put, timeout: float | None, siblings: Siblings | None = None
    ) -> asyncio.Task[None]:
        """Sends a request; `put` hears of it until it ends. Cancelling the task ends it with
        CancelledError. timeout: seconds for all of it. siblings: those of the same list."""
        self._connected()
        task = self._task(self._decode(letter, put, timeout, siblings or Siblings()))

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled():
                put(self._cancelled(letter.request_id))
            elif (error := task.exception()) is not None:  # what the server sent makes no sense
                failure = unreadable(error)
                failure.request_id, failure.__cause__ = letter.request_id, error
                put(failure)

        task.add_done_callback(ended)
        return task

    async def unary(
        self,
        method: str,
        message: Any,
        timeout: float | None,
        siblings: Siblings | None = None,
        *,
        is_named: bool = True,
    ) -> Any:
        """The answer of a call that has one. siblings: see start. is_named: see Attempts. Raises
        ForkdecodeError."""
        self._connected()
        request_id = getattr(message, "request_id", None)
        attempts = Attempts(self._settings.retries, timeout, request_id, is_named=is_named)
        task = self._task(self._unary(method, message, timeout, siblings or Siblings(), attempts))
        return await self._until_closed(task, request_id)

    async def unary_all(self, method: str, inquiries: Sequence[Inquiry], timeout: float | None) -> list[Any]:
        """The answers of a list of requests that are sent at once, in their order. timeout: for each. The
        first that fails ends the others. Raises ForkdecodeError."""
        siblings = Siblings()
        calls = [
            asyncio.ensure_future(self.unary(method, one.message, timeout, siblings, is_named=one.is_named))
            for one in inquiries
        ]
        try:
            return await asyncio.gather(*calls)
        except BaseException:
            for call in calls:
                call.cancel()
            raise

    async def tree(self, begin: pb.TreeCommand, put: PutTree, timeout: float | None) -> TreeCall:
        """Opens or resumes a tree session; `put` hears of it until it ends. timeout: seconds until it is
        open. Raises ForkdecodeError."""
        self._connected()
        task = self._task(self._tree(begin, put, timeout))
        try:
            return await self._until_closed(task, None)
        except asyncio.CancelledError:
            if task.done() and not task.cancelled() and task.exception() is None:
                self._task(task.result().close())  # it was opened just before
            raise

    async def _unary(
        self, method: str, message: Any, timeout: float | None, siblings: Siblings, attempts: Attempts
    ) -> Any:
        while True:
            began = time.monotonic()
            try:
                with siblings.running():
                    call = getattr(self._stub, method)
                    answer = await call(attempts.addressed(message), **self._how(attempts))
                siblings.room()
                if answer is None:
                    raise unreadable()
                if attempts.request_id is not None:
                    answer.request_id = attempts.request_id
                return answer
            except grpc.aio.AioRpcError as error:
                failure = self._told(error, attempts, timeout)
            if not isinstance(failure, QueueFullError):
                siblings.room()
            if not await siblings.again(failure, attempts, time.monotonic() - began):
                raise attempts.final(failure)

    async def _tree(self, begin: pb.TreeCommand, put: PutTree, timeout: float | None) -> TreeCall:
        attempts = Attempts(self._settings.retries, timeout)
        while True:
            opening = TreeOpening(self._stub.Session(metadata=self._settings.metadata), begin)
            try:
                async with asyncio.timeout(attempts.seconds_left()):
                    first = await opening.first()
                if first is None:
                    raise unreadable()
                if isinstance(first, pb.TreeEvent):
                    return self._opened(opening.call, first, put)
                failure: ForkdecodeError = UnavailableError("the server ended the call without a session")
            except grpc.aio.AioRpcError as error:
                failure = self._told(error, attempts, timeout)
            except TimeoutError as error:
                failure = DeadlineError(f"timeout: not open after {timeout:g} s", field="timeout")
                failure.__cause__ = error
            except BaseException:
                self._until_ended(opening.leave())
                raise
            self._until_ended(opening.leave())
            delay = attempts.delay(failure)
            if delay is None:
                raise failure
            await asyncio.sleep(delay)

    def _opened(self, call: Any, first: pb.TreeEvent, put: PutTree) -> TreeCall:
        events = tree_events(first)
        if self._closed:
            raise self._cancelled(None)
        if not events or not isinstance(events[0], TreeOpened):
            raise unreadable("a session does not begin with what it is")
        tree = TreeCall(call, events, put)
        self._trees.add(tree)
        tree.ended.add_done_callback(lambda _: self._trees.discard(tree))
        return tree

    async def close(self) -> None:
        """Ends what is running with EngineClosedError. Idempotent."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *(tree.close() for tree in list(self._trees)), return_exceptions=True)
        if self._endings:
            await asyncio.wait(list(self._endings), timeout=_LAST_STATUS)
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    def _connected(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise EngineClosedError("the client has been closed")
        if self._loop not in (None, loop):
            raise UnavailableError("an AsyncClient belongs to the event loop that first used it")
        if self._channel is None:
            self._loop, self._channel = loop, self._settings.channel()
            self._stub = DecodeServiceStub(self._channel)  # type: ignore[no-untyped-call]
        return loop

    def _task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """One that close() ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _until_closed(self, task: asyncio.Task[T], request_id: str | None) -> T:
        """Waits for a task, and no longer than until close(), whatever it waits for. Raises EngineClosedError
        then. Who stops waiting cancels it."""
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not self._closed or (caller is not None and caller.cancelling()):
                raise
            raise self._cancelled(request_id) from None

    async def _decode(self, letter: Letter, put: Put, timeout: float | None, siblings: Siblings) -> None:
        attempts = Attempts(self._settings.retries, timeout, letter.request_id, is_named=letter.is_named)
        while True:
            events = Events(letter.strategy, letter.request_id)
            heard, began = False, time.monotonic()
            call = self._stub.Decode(attempts.addressed(letter.message), **self._how(attempts))
            try:
                with siblings.running():
                    async for message in call:
                        heard = True
                        found = events.of(message)
                        put(found)
                        if found and isinstance(found[-1], Finished):
                            self._see_out(call, siblings)
                            return
                failure: ForkdecodeError = UnavailableError("the server ended the stream without a result")
            except grpc.aio.AioRpcError as error:
                failure = self._told(error, attempts, timeout)
            except BaseException:
                call.cancel()
                raise
            if heard or not isinstance(failure, QueueFullError):
                siblings.room()
            if heard or not await siblings.again(failure, attempts, time.monotonic() - began):
                put(attempts.final(failure))
                return

    def _see_out(self, call: Any, siblings: Siblings) -> None:
        """Takes the status of a call whose result is there, while nobody waits for it: to a server whose
        caller hangs up before, the request was cancelled. Only then has it made room for another."""
        self._until_ended(_ended(call, siblings))

    def _until_ended(self, work: Coroutine[Any, Any, None]) -> None:
        """Does what a call has to end with, while nobody waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def _how(self, attempts: Attempts) -> dict[str, Any]:
        """What else the next attempt is called with."""
        return {"timeout": attempts.seconds_left(), "metadata": self._settings.metadata}

    def _told(
        self, error: grpc.aio.AioRpcError, attempts: Attempts, timeout: float | None
    ) -> ForkdecodeError:
        failure = unknown_host(self._settings.address, error.details() or "") or failure_of(error)
        if isinstance(failure, DeadlineError) and timeout is not None:
            failure = DeadlineError(f"timeout: not done after {timeout:g} s", field="timeout")
        failure.request_id = attempts.request_id or failure.request_id
        failure.__cause__ = error
        return failure

    def _cancelled(self, request_id: str | None) -> ForkdecodeError:
        if self._closed:
            return EngineClosedError("the client was closed", request_id=request_id)
        return CancelledError("the request was cancelled", request_id=request_id)


async def _ended(call: Any, siblings: Siblings) -> None:
    try:
        with siblings.running():
            async with asyncio.timeout(_STATUS_SECONDS):
                await call.code()
    except TimeoutError:
        return
    finally:
        call.cancel()  # no effect on one that has ended
        siblings.room()
