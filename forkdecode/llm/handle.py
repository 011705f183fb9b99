"""A running request, from a thread or from a coroutine."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import AsyncIterator, Iterator

from forkdecode.engine.thread import EngineThread
from forkdecode.errors import ForkdecodeError, GroupFailedError
from forkdecode.llm.assembly import Assembler
from forkdecode.scheduler.events import GroupEvent
from forkdecode.types import DecodeResult, Event, Finished


class Progress:
    """How far one request has come, as its consumer has seen it."""

    def __init__(self, assembler: Assembler) -> None:
        self._assembler = assembler
        self._result: DecodeResult | None = None
        self._error: ForkdecodeError | None = None

    @property
    def done(self) -> bool:
        """Whether the last event has been taken."""
        return self._result is not None or self._error is not None

    def take(self, item: GroupEvent | ForkdecodeError) -> list[Event]:
        """What the caller sees of one engine event; an error ends the request."""
        try:
            events = self._assembler.events(item)
        except Exception as error:  # a caller's scorer may raise anything
            self._error = error if isinstance(error, ForkdecodeError) else _scorer_failed(error)
            return []
        if events and isinstance(events[-1], Finished):
            self._result = events[-1].result
        return events

    def outcome(self) -> DecodeResult:
        """The result once done. Raises the error that ended the request."""
        if self._error is not None:
            raise self._error
        assert self._result is not None, "asked before the end"
        return self._result


def _scorer_failed(error: Exception) -> GroupFailedError:
    failure = GroupFailedError(f"rank_by: the scorer failed: {error}", field="rank_by")
    failure.__cause__ = error
    return failure


class Handle:
    """One request. Iterate for its events or ask for its result; one consumer at a time."""

    def __init__(self, request_id: str, assembler: Assembler, thread: EngineThread) -> None:
        self.request_id = request_id
        self._progress = Progress(assembler)
        self._thread = thread
        self._inbox: queue.SimpleQueue[GroupEvent | ForkdecodeError] = queue.SimpleQueue()

    def sink(self, event: GroupEvent | ForkdecodeError) -> None:
        """Takes an engine event; called in the engine thread."""
        self._inbox.put(event)

    @property
    def done(self) -> bool:
        """Whether the last event has been taken."""
        return self._progress.done

    def __iter__(self) -> Iterator[Event]:
        """Events until the request is done; raises the error that ended it. Leaving the loop early
        does not cancel: call cancel()."""
        while not self.done:
            yield from self._progress.take(self._inbox.get())
        self._progress.outcome()

    def result(self, timeout: float | None = None) -> DecodeResult:
        """Waits for the end. Raises the error that ended the request, or TimeoutError after
        `timeout` seconds; the request then goes on."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.done:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                item = self._inbox.get(timeout=left)
            except queue.Empty:
                raise TimeoutError(f"request {self.request_id!r} is not done after {timeout} s") from None
            self._progress.take(item)
        return self._progress.outcome()

    def cancel(self) -> None:
        """Ends the request before its next step, with CancelledError; no effect once it is done."""
        if not self.done:
            self._thread.cancel(self.request_id)


class AsyncHandle:
    """One request in an event loop. Iterate for its events or await its result."""

    def __init__(self, request_id: str, assembler: Assembler, thread: EngineThread) -> None:
        self.request_id = request_id
        self._progress = Progress(assembler)
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[GroupEvent | ForkdecodeError] = asyncio.Queue()

    def sink(self, event: GroupEvent | ForkdecodeError) -> None:
        """Takes an engine event; called in the engine thread."""
        try:
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, event)
        except RuntimeError:  # the loop has been closed: nobody reads any more
            self._thread.cancel(self.request_id)

    @property
    def done(self) -> bool:
        """Whether the last event has been taken."""
        return self._progress.done

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Events until the request is done; raises the error that ended it. A consumer that is
        cancelled, or closes the iterator, cancels the request."""
        try:
            while not self.done:
                for event in self._progress.take(await self._inbox.get()):
                    yield event
        finally:
            self.cancel()
        self._progress.outcome()

    async def result(self) -> DecodeResult:
        """Waits for the end. Raises the error that ended the request. Cancelling the wait (by
        asyncio.timeout, say) cancels the request."""
        try:
            while not self.done:
                self._progress.take(await self._inbox.get())
        finally:
            self.cancel()
        return self._progress.outcome()

    def cancel(self) -> None:
        """Ends the request before its next step, with CancelledError; no effect once it is done."""
        if not self.done:
            self._thread.cancel(self.request_id)
