"""Around every call: who it is, whether there is room, how long it may take, how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc.aio

from forkdecode.errors import CancelledError, DeadlineError, ForkdecodeError, invalid, own
from forkdecode.rpc.status import status_of
from forkdecode.server.auth import Caller, TokenBook
from forkdecode.server.record import CallRecord, Recorder
from forkdecode.server.running import Running

T = TypeVar("T")
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_ABORT_SECONDS = 1.0
"""How long the end of a call waits to be told until its status is taken, which may never be."""
A_MOMENT = 0.05
"""Seconds in which gRPC says that a call is over (its client is gone, its message too large), after it has
said that no more comes of it. Of a call that goes on it says only that."""
_FIRST_MESSAGE = 30.0
"""Seconds within which a call has to say what it is for."""


class Guard:
    """Lets calls in and sees them out."""

    def __init__(self, tokens: TokenBook, running: Running, recorder: Recorder) -> None:
        self._tokens = tokens
        self._running = running
        self._recorder = recorder

    async def serve(
        self,
        messages: AsyncIterator[bytes],
        context: Context,
        record: CallRecord,
        work: Callable[[bytes, Caller], Awaitable[T]],
        *,
        takes_work: bool = True,
    ) -> T:
        """Does `work` for the caller, with the first message, and returns its answer. An error becomes the
        call's status, and raises what ends a handler of gRPC. takes_work: it counts among those that are
        bounded, once its message is there."""

        async def begun(caller: Caller) -> T:
            data = await _first(messages)
            with self._running.call(caller) if takes_work else nullcontext():
                return await work(data, caller)

        seconds = context.time_remaining()
        try:
            caller = self._caller(context)
            record.caller = caller.name
            return await self._in_time(seconds, begun(caller))
        except asyncio.CancelledError:
            self._cut_off(record, seconds)
            raise
        except Exception as error:
            if context.done():  # the caller has gone; whatever we met writing to it is of no interest
                record.status = "CANCELLED"
                raise asyncio.CancelledError from error
            await self._end(context, record, error)
        finally:
            self._recorder.ended(record)

    def _caller(self, context: Context) -> Caller:
        """By token; where none is asked for, by the client's certificate, if it showed one."""
        caller = self._tokens.identify(context.invocation_metadata())
        identities = None if self._tokens.needs_token else context.peer_identities()
        return Caller(min(identities).decode("utf-8", "replace")) if identities else caller

    async def hold(self, context: Context, record: CallRecord, wait: Awaitable[object]) -> None:
        """Waits before a call is served. One that ends meanwhile is told of like those that were."""
        seconds = context.time_remaining()
        record.caller = self._caller(context).name
        try:
            await wait
        except asyncio.CancelledError:
            self._cut_off(record, seconds)
            self._recorder.ended(record)
            raise

    def knows(self, context: Context) -> bool:
        """Whether the call is somebody's whom `serve` would do work for."""
        try:
            self._caller(context)
        except ForkdecodeError:
            return False
        return True

    @staticmethod
    def _cut_off(record: CallRecord, seconds: float | None) -> None:
        record.status = "DEADLINE_EXCEEDED" if is_over(seconds, record.age) else "CANCELLED"

    async def _in_time(self, seconds: float | None, work: Awaitable[T]) -> T:
        # gRPC ends the call at its deadline too, but its timer is not ours.
        try:
            async with asyncio.timeout(seconds) as limit:
                return await work
        except TimeoutError as error:
            if not limit.expired() or isinstance(error, ForkdecodeError):
                raise
            raise DeadlineError("the deadline came before the end") from None

    async def _end(self, context: Context, record: CallRecord, error: Exception) -> NoReturn:
        if isinstance(error, ForkdecodeError):
            if error.request_id is None and record.request_id:
                error = own(error, record.request_id)
            record.problem = str(error)
        else:
            record.problem = type(error).__name__
            self._recorder.broken(record, error)
        status = status_of(error, record.message)
        record.status = status.code.name
        abort = asyncio.ensure_future(context.abort(*status))
        abort.add_done_callback(_forget)  # should the call be cut off while it waits
        await asyncio.wait([abort], timeout=_ABORT_SECONDS)
        if not abort.done():  # it waits behind what its reader has not taken; the request itself is over
            self._recorder.ended(record)
        try:
            await abort  # raises the AbortError that is this call's: gRPC takes any other for a fault
        except grpc.aio.AbortError:
            raise
        except Exception as failure:  # the deadline cut off this write, or another: the call is going anyway
            raise asyncio.CancelledError from failure
        raise AssertionError("an abort raises")


def is_over(seconds: float | None, passed: float) -> bool:
    """Whether a call that was cut off after `passed` of its `seconds` has missed its deadline. Its client may
    cut it off at the same moment, and gRPC tells a server the time in three digits, rounded up. (What
    context.time_remaining() says at the end hangs on a clock that may be set.)"""
    return seconds is not None and passed >= 0.98 * seconds - 0.05


async def _first(messages: AsyncIterator[bytes]) -> bytes:
    try:
        async with asyncio.timeout(_FIRST_MESSAGE):
            return await anext(messages)
    except StopAsyncIteration:
        await asyncio.sleep(A_MOMENT)
        raise invalid("request", "the call ended without a message", "one message at least") from None
    except TimeoutError:
        raise CancelledError(f"no message came for {_FIRST_MESSAGE:g} seconds") from None


def _forget(abort: asyncio.Future[Any]) -> None:
    """Whether a status was taken after all is of no interest; but asyncio wants it asked."""
    if not abort.cancelled():
        abort.exception()
