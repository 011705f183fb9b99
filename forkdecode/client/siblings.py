"""The requests of one list at a server that takes fewer at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from forkdecode.client.attempts import Attempts
from forkdecode.errors import ForkdecodeError, QueueFullError

LONGEST = 30.0
"""Seconds that a refusal is waited for, however long the last one took."""


@dataclass(slots=True)
class _Waiter:
    """See Siblings._turn: its seconds, and what it returns."""

    seconds: float
    turn: asyncio.Future[bool]


class Siblings:
    """The requests of one list, which are sent at once: however many they are, a server that is full with
    some of them will take the others. Belongs to the loop that sends them.

    Those that were refused stand in a line. One is sent again whenever one that was at the server has ended;
    and since room may come from others' requests, too, one now and then, twice as many each time none of
    them is refused. So a list takes a few calls for each of its requests, however long it is. While one is at
    the server, or may be, it is no retry to find it full; else it is one of all that wait.
    """

    def __init__(self) -> None:
        self._running = 0
        self._line: deque[_Waiter] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._at_once = 1
        self._refusal = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """While one of them is at the server, or on its way."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def again(self, failure: ForkdecodeError, attempts: Attempts, took: float) -> bool:
        """Waits until a request may be sent again that has failed without an event, `took` seconds after it
        was sent; False if `failure` is final."""
        if isinstance(failure, QueueFullError) and failure.retry_after is not None:
            self._refusal = took
            return await self._in_turn(failure, attempts)
        delay = attempts.delay(failure)
        if delay is not None:
            await asyncio.sleep(delay)
        return delay is not None

    async def _in_turn(self, failure: QueueFullError, attempts: Attempts) -> bool:
        others_run = self._running > 0
        if not others_run:
            self._full()
        while (delay := attempts.delay(failure, others_run)) is not None:
            try:
                async with asyncio.timeout(attempts.seconds_left()):
                    if await self._turn(delay):
                        return True
            except TimeoutError:
                return False
            others_run = False
        return False

    def room(self) -> None:
        """One of them has left the server."""
        self._send(1)

    def _full(self) -> None:
        """None of them is at the server, and one was refused: all that wait have tried in vain."""
        line, self._line = self._line, deque()
        self._stop_timer()
        for waiter in line:
            _call(waiter, False)

    async def _turn(self, seconds: float) -> bool:
        """Waits in line. Returns whether to send the request: if not, _full() counts as having sent it.
        seconds: from one attempt without room() to the next."""
        self._at_once = 1
        waiter = _Waiter(seconds, asyncio.get_running_loop().create_future())
        self._line.append(waiter)
        self._start_timer()
        return await waiter.turn

    def _send(self, count: int) -> None:
        while count and self._line:
            count -= _call(self._line.popleft(), True)

    def _start_timer(self) -> None:
        if self._timer is None and self._line:
            # Not before a refusal of those sent last would be here: who is still out counts as taken.
            seconds = max(self._line[0].seconds, min(2 * self._refusal, LONGEST))
            self._timer = asyncio.get_running_loop().call_later(seconds, self._timed)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _timed(self) -> None:
        self._timer = None
        count, self._at_once = self._at_once, 2 * self._at_once
        self._send(count)
        self._start_timer()


def _call(waiter: _Waiter, turn: bool) -> bool:
    """Whether it still waits."""
    if waiter.turn.done():
        return False
    waiter.turn.set_result(turn)
    return True
