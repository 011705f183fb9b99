"""A running request, from a thread or from a coroutine."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeAlias

from forkdecode.calls.one_process import OneProcess
from forkdecode.checks import check_float, told
from forkdecode.errors import ForkdecodeError, GroupFailedError
from forkdecode.results import DecodeResult, Event, Finished

Read: TypeAlias = Callable[[Any], list[Event]]
"""Makes events of an item that an engine sent; raises the error that ended the request."""


class Progress:
    """How far one request has come, as its consumer has seen it. read, cancel: see Handle."""

    def __init__(self, request_id: str, read: Read, cancel: Callable[[], None]) -> None:
        self.unread: deque[Event] = deque()
        self._request_id = request_id
        self._read = read
        self._cancel = cancel
        self._result: DecodeResult | None = None
        self._error: ForkdecodeError | None = None

    @property
    def done(self) -> bool:
        """Whether the engine's last event has been taken."""
        return self._result is not None or self._error is not None

    def take(self, item: Any) -> None:
        """Makes events of an engine's item; an error ends the request.

        Raises what is not the request's own: KeyboardInterrupt, within a caller's scorer too. The item is
        lost then, so the request ends all the same.
        """
        events, cause = [], None
        try:
            events = self._read(item)
        except ForkdecodeError as error:
            self._error, cause = error, error.__cause__
        except BaseException as error:
            self._cancel()
            problem = f"what came of it was not read: {told(error)}"
            self._error = GroupFailedError(problem, request_id=self._request_id)
            raise
        if isinstance(cause, KeyboardInterrupt):
            raise cause
        self.unread.extend(events)
        if events and isinstance(events[-1], Finished):
            self._result = events[-1].result

    def outcome(self) -> DecodeResult:
        """The result once done. Raises the error that ended the request."""
        if self._error is not None:
            raise self._error
        assert self._result is not None, "asked before the end"
        return self._result


def _seconds(timeout: float | None) -> float | None:
    """A timeout of a caller; none when it is beyond what a clock can count."""
    if timeout is None:
        return None
    seconds = check_float("timeout", timeout)
    return None if seconds > threading.TIMEOUT_MAX else max(0.0, seconds)


def _late(request_id: str, timeout: float | None) -> TimeoutError:
    return TimeoutError(f"request {request_id!r} is not done after {timeout} s")


class Handle:
    """One request. Iterate over it for its events, or ask for its result; from any thread.

    The request continues until it ends or is cancelled, whether anyone listens or not. read: turns what was
    put into events; called in the listener's thread. cancel: cancels it in the engine. heard: called after
    each put. check_caller: raises where who waits would wait for ever; by default in a forked child.
    """

    def __init__(
        self,
        request_id: str,
        read: Read,
        cancel: Callable[[], None],
        heard: Callable[[], None] | None = None,
        check_caller: Callable[[], None] | None = None,
    ) -> None:
        self._request_id = request_id
        self._progress = Progress(request_id, read, cancel)
        self._cancel = cancel
        self._heard = heard
        self._check_caller = check_caller or OneProcess().check
        self._reading = threading.Lock()
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()

    @property
    def request_id(self) -> str:
        """The id that it was submitted with, or was assigned."""
        return self._request_id

    def put(self, item: Any) -> None:
        """For the engine, from any thread: what happened. Does not block."""
        self._inbox.put(item)
        if self._heard is not None:
            self._heard()

    @property
    def done(self) -> bool:
        """Whether the last event has been taken."""
        return self._progress.done

    def __iter__(self) -> Handle:
        return self

    def __next__(self) -> Event:
        """The next event; none after Finished. Raises the error that ended the request."""
        self._check_wait()
        with self._reading:
            while not self._progress.unread:
                if self.done:
                    self._progress.outcome()
                    raise StopIteration
                self._progress.take(self._inbox.get())
            return self._progress.unread.popleft()

    def result(self, timeout: float | None = None) -> DecodeResult:
        """Waits for the end. Raises the error that ended the request, or TimeoutError after `timeout`
        seconds; the request then continues."""
        self._check_wait()
        seconds = _seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        if not self._reading.acquire(timeout=-1 if seconds is None else seconds):
            raise _late(self.request_id, timeout)
        try:
            while not self.done:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                self._progress.take(self._inbox.get(timeout=left))
                self._progress.unread.clear()
        except queue.Empty:
            raise _late(self.request_id, timeout) from None
        finally:
            self._reading.release()
        return self._progress.outcome()

    def cancel(self) -> None:
        """Ends the request before its next step, with CancelledError; no effect once it is done."""
        if not self.done:
            self._cancel()

    def _check_wait(self) -> None:
        if not self.done:
            self._check_caller()


class EventStream:
    """The events of one request. Closing it, leaving its `with`, or dropping it cancels the request."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._closed = False

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> Event:
        if self._closed:
            raise StopIteration
        return next(self._handle)

    def close(self) -> None:
        """Cancels the request if it is still running. Idempotent."""
        self._closed = True
        self._handle.cancel()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):  # else a copy that could not be made
            self._handle.cancel()


class AsyncHandle:
    """One request in an event loop. Iterate over it for its events or await its result, from one task or
    several.

    The request continues until it ends or is cancelled, or until a task that waits here is cancelled.
    """

    def __init__(self, request_id: str, read: Read, cancel: Callable[[], None]) -> None:
        self._request_id = request_id
        self._progress = Progress(request_id, read, cancel)
        self._cancel = cancel
        self._loop = asyncio.get_running_loop()
        self._reading = asyncio.Lock()
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()

    @property
    def request_id(self) -> str:
        """The id that it was submitted with, or was assigned."""
        return self._request_id

    def put(self, item: Any) -> None:
        """For the engine, from any thread: what happened. Does not block."""
        try:
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, item)
        except RuntimeError:  # the loop has been closed: nobody reads any more
            self._cancel()

    def put_here(self, item: Any) -> None:
        """The same from the event loop itself."""
        self._inbox.put_nowait(item)

    @property
    def done(self) -> bool:
        """Whether the last event has been taken."""
        return self._progress.done

    def __aiter__(self) -> AsyncHandle:
        return self

    async def __anext__(self) -> Event:
        """The next event; none after Finished. Raises the error that ended the request."""
        try:
            async with self._reading:
                while not self._progress.unread:
                    if self.done:
                        self._progress.outcome()
                        raise StopAsyncIteration
                    self._progress.take(await self._inbox.get())
                return self._progress.unread.popleft()
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def result(self, timeout: float | None = None) -> DecodeResult:
        """Waits for the end. Raises the error that ended the request, or TimeoutError after `timeout`
        seconds; the request then continues. Cancelling the wait cancels the request."""
        try:
            async with asyncio.timeout(_seconds(timeout)), self._reading:
                while not self.done:
                    self._progress.take(await self._inbox.get())
                    self._progress.unread.clear()
        except TimeoutError:
            raise _late(self.request_id, timeout) from None
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self._progress.outcome()

    def cancel(self) -> None:
        """Ends the request before its next step, with CancelledError; no effect once it is done."""
        if not self.done:
            self._cancel()
