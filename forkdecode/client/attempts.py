"""When a call may be tried again, and how long to wait before."""

from __future__ import annotations

import random
import time

from forkdecode.errors import (
    EngineClosedError,
    ForkdecodeError,
    InvalidRequestError,
    QueueFullError,
    UnavailableError,
)

FIRST_DELAY = 0.1
MAX_DELAY = 5.0
"""Seconds: the waits double from the first to the longest, unless the server names another."""
MAX_ENGINES = 2
"""Engines that may end under one request. It may be what ended them, and takes all that runs there along."""


class Attempts:
    """Of one call, which can have had no effect when it is tried again: no event has come.

    timeout: seconds for all attempts together, None for no limit.
    """

    def __init__(self, retries: int, timeout: float | None) -> None:
        self._left = retries
        self._made = 0
        self._engines = MAX_ENGINES
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def seconds_left(self) -> float | None:
        """For the next attempt; None for no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def delay(self, error: ForkdecodeError, others_run: bool = False) -> float | None:
        """Seconds to wait before the next attempt, or None if `error` is final. others_run: of the same list;
        while they do, it is no retry to find the server full."""
        self._engines -= isinstance(error, EngineClosedError)
        waits_its_turn = others_run and isinstance(error, QueueFullError)
        if not (self._left or waits_its_turn) or not self._is_passing(error):
            return None
        delay = _jittered(min(MAX_DELAY, FIRST_DELAY * 2**self._made), error.retry_after)
        left = self.seconds_left()
        if left is not None and left <= delay:
            return None
        if not waits_its_turn:
            self._left -= 1
            self._made += 1
        return delay

    def _is_passing(self, error: ForkdecodeError) -> bool:
        if not self._engines:
            return False
        if isinstance(error, QueueFullError):
            return error.retry_after is not None
        # The server may still hold the id of an attempt whose connection was lost.
        held = isinstance(error, InvalidRequestError) and error.field == "request_id" and self._made > 0
        wrong = error.field == "address"  # there is no such host, and will not be in a moment
        return held or (isinstance(error, UnavailableError) and not wrong)


def _jittered(backoff: float, hint: float | None) -> float:
    """Different for clients that failed together. Never before the server's hint."""
    share = random.random()
    return max(backoff * (0.5 + 0.5 * share), (hint or 0.0) * (1 + 0.2 * share))
