"""From the engine's threads to one request's reader, who may be slow.

The engine never waits: its threads only append to a list and, if nobody has yet, wake the loop. In the
loop events become what callers see, and wait merged until the reader takes them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from forkdecode.errors import CapacityError, ForkdecodeError, GroupFailedError
from forkdecode.results import Delta, Event, TokenLogprob
from forkdecode.rpc.coalesce import Coalescer
from forkdecode.scheduler.events import GroupEvent, GroupFailed, GroupFinished
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.server.backend import StepBell
from forkdecode.server.workers import LARGE

Last: TypeAlias = GroupFinished | GroupFailed | ForkdecodeError
Read: TypeAlias = Callable[[GroupEvent | ForkdecodeError], list[Event]]

MAX_PENDING_BYTES = 64 * 2**20
"""What may wait for one reader. Only log-probabilities by the thousand come near it."""
TOKEN_BYTES = 64
"""About what a waiting token takes: an entry of a list, an integer, its text."""
LOGPROB_BYTES = 128
"""About what a waiting log-probability takes: a pair, an integer, a float."""
_SMALL_RESULT = 2000
"""Tokens of a result that is turned into text in the loop: 2 ms at most."""
_LOGPROBS_A_TOKEN = 4
"""Log-probabilities that take as long as a token's text."""


class Receiver(Protocol):
    """Takes what was sent to it, in the loop."""

    def deliver(self, item: Any) -> None: ...


_Letter: TypeAlias = tuple[Receiver, Any]


class Courier:
    """Brings events of all requests into the loop: one wake-up for however many have gathered.

    bell: what tells the end of a step; events are brought then. Without one they are brought at once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, bell: StepBell | None = None) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._gathered: list[_Letter] = []
        """Of a step that has not ended."""
        self._ready: list[_Letter] = []
        self._is_woken = False
        self._at_once = bell is None
        if bell is not None:
            bell.connect(self._send)

    def put(self, receiver: Receiver, item: Any) -> None:
        """From any thread; never blocks."""
        with self._lock:
            self._gathered.append((receiver, item))
        if self._at_once:
            self._send()

    def _send(self) -> None:
        with self._lock:
            self._ready += self._gathered
            self._gathered.clear()
            if not self._ready or self._is_woken:
                return
            self._is_woken = True
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the loop has been closed: nobody reads any more
            self._ready.clear()

    def _deliver(self) -> None:
        with self._lock:
            self._is_woken = False
            letters, self._ready = self._ready, []
        for receiver, item in letters:
            try:
                receiver.deliver(item)
            except Exception as error:  # of this receiver: the others must not lose their letters
                self._loop.call_exception_handler({"message": "a letter was not taken", "exception": error})


@dataclass(frozen=True, slots=True)
class Batch:
    """What a reader takes at once. is_last: nothing follows. is_large: not to be converted in the loop."""

    events: list[Event]
    is_last: bool = False
    is_large: bool = False


class Outbox:
    """What one request's reader has not taken yet. Everything but sink() belongs to the loop."""

    def __init__(self, request: DecodeRequest, read: Read, courier: Courier, workers: Executor) -> None:
        """read: makes events of what the engine sent, or raises the error that it is."""
        self.request = request
        self.ended: Last | None = None
        """The engine's last event, once it is there."""
        self._read = read
        self._courier = courier
        self._workers = workers
        self._pending = Coalescer()
        self._weight = 0
        self._last: Last | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._when_ended: Callable[[], None] | None = None

    def sink(self, event: GroupEvent | ForkdecodeError) -> None:
        """The job's sink."""
        self._courier.put(self, event)

    def deliver(self, event: GroupEvent | ForkdecodeError) -> None:
        """Takes one event of the engine."""
        if isinstance(event, (GroupFinished, GroupFailed, ForkdecodeError)):
            self.ended = event
            self.fail(event)
            if self._when_ended is not None:
                self._when_ended()
        elif self._last is None:
            self._gather(event)
            self._wake()

    def fail(self, last: Last) -> None:
        """Ends the stream after what waits. What comes later counts no more."""
        if self._last is None:
            self._last = last
            self._wake()

    def when_ended(self, call: Callable[[], None]) -> None:
        """Calls once the engine is done with the request, whether it was read to its end or not."""
        self._when_ended = call
        if self.ended is not None:
            call()

    async def take(self) -> Batch:
        """Waits for events and takes all there are, merged. Raises the error that ended the request, once
        everything before it has been taken."""
        while not self._pending and self._last is None:
            await self._woken()
        last = self._last
        is_large = self._weight >= LARGE
        if last is None or (self._pending and not isinstance(last, GroupFinished)):
            return Batch(self._take(), is_large=is_large)
        ends_large = is_large_result(last)
        self._pending.add(await self._assembled(last, ends_large))
        return Batch(self._take(), is_last=True, is_large=is_large or ends_large)

    async def last(self) -> Last:
        """Waits for the end of a request that has no other events."""
        while self._last is None:
            await self._woken()
        return self._last

    async def _woken(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _take(self) -> list[Event]:
        self._weight = 0
        return self._pending.take()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _gather(self, event: GroupEvent) -> None:
        name = self.request.request_id
        try:
            found = self._read(event)
            self._pending.add(found)
            self._weight += sum(map(_event_bytes, found))
        except ForkdecodeError as error:
            self.fail(error)
        except Exception as error:
            failure = GroupFailedError(f"internal error: {type(error).__name__}", request_id=name)
            failure.__cause__ = error
            self.fail(failure)
        if self._weight > MAX_PENDING_BYTES:
            self.fail(too_slow(f"more than {MAX_PENDING_BYTES >> 20} MiB of its events wait", name))

    async def _assembled(self, last: Last, is_large: bool) -> list[Event]:
        """The final events, or the error; what takes long to turn into text does so in a worker."""
        if not is_large:
            return self._read(last)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._workers, self._read, last)


async def write_in_time(context: Any, message: Any, seconds: float, name: str) -> None:
    """Writes to a call. Raises CapacityError if its reader takes too little for that for so long."""
    try:
        async with asyncio.timeout(seconds) as limit:
            await context.write(message)
    except TimeoutError:
        if not limit.expired():
            raise
        raise too_slow(f"nothing more could be sent to it for {seconds:g} seconds", name) from None


def too_slow(problem: str, request_id: str) -> CapacityError:
    """What a reader hears who does not read."""
    return CapacityError(
        f"the reader is too slow: {problem}", limit="a reader that keeps up", request_id=request_id
    )


def _event_bytes(event: Event) -> int:
    """About how much memory an event takes while it waits, merged with others."""
    if not isinstance(event, Delta):
        return 0
    size = TOKEN_BYTES * len(event.token_ids)
    if event.logprobs is not None:
        size += LOGPROB_BYTES * sum(map(_num_logprobs, event.logprobs))
    return size


def _num_logprobs(one: TokenLogprob) -> int:
    return 2 + len(one.top) + len(one.top_processed)


def is_large_result(last: Last) -> bool:
    """Whether it takes more than a moment to turn a result into text and a message."""
    if not isinstance(last, GroupFinished):
        return False
    tokens = sum(len(candidate.token_ids) for candidate in last.candidates)
    if tokens > _SMALL_RESULT:
        return True
    every = (one for candidate in last.candidates for one in candidate.logprobs or ())
    logprobs = sum(_num_logprobs(one) for one in every)
    return tokens + logprobs // _LOGPROBS_A_TOKEN > _SMALL_RESULT
