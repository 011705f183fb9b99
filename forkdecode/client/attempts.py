"""When a call may be tried again, and how long to wait before."""

from __future__ import annotations

import random
import time
from typing import Any, TypeVar

from forkdecode.errors import (
    EngineClosedError,
    ForkdecodeError,
    InvalidRequestError,
    QueueFullError,
    UnavailableError,
)

M = TypeVar("M", bound=Any)
FIRST_DELAY = 0.1
MAX_DELAY = 5.0
"""Seconds: the waits double from the first to the longest, unless the server names another."""
MAX_ENGINES = 2
"""Engines that may end under one request. It may be what ended them, and takes all that runs there along."""


class Attempts:
    """Of one call, which can have had no effect when it is tried again: no event has come.

    timeout: seconds for all attempts together, None for no limit.
    """

    def __init__(
        self, retries: int, timeout: float | None, request_id: str | None = None, *, is_named: bool = True
    ) -> None:
        """request_id: the request's, if it has one. is_named: the caller has chosen it, so that it stays."""
        self.request_id = request_id
        self._left = retries
        self._made = 0
        self._is_named = is_named
        self._lost = 0
        self._loss: UnavailableError | None = None
        self._engines = MAX_ENGINES
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def seconds_left(self) -> float | None:
        """For the next attempt; None for no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def addressed(self, message: M) -> M:
        """`message` for the next attempt. The server may still hold the id of one whose connection was lost,
        for as long as it takes to notice: one that the caller has not chosen gets a number."""
        if self._is_named or not self._lost:
            return message
        again: M = type(message)()
        again.CopyFrom(message)
        again.request_id = f"{message.request_id}-{self._lost + 1}"
        return again

    def final(self, error: ForkdecodeError) -> ForkdecodeError:
        """What a caller is told when `error` is the last, with the request's id. That the server still holds
        the id is the fault of the connection that was lost."""
        if self._loss is not None and self._is_held(error):
            told = f"{self._loss}; the server still holds the request's id"
            error = UnavailableError(told, retry_after=self._loss.retry_after)
            error.__cause__ = self._loss
        error.request_id = self.request_id or error.request_id
        return error

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
        if isinstance(error, UnavailableError):
            self._lost, self._loss = self._lost + 1, error
        if not waits_its_turn:
            self._left -= 1
            self._made += 1
        return delay

    def _is_passing(self, error: ForkdecodeError) -> bool:
        if not self._engines:
            return False
        if isinstance(error, QueueFullError):
            return error.retry_after is not None
        wrong = error.field == "address"  # there is no such host, and will not be in a moment
        return self._is_held(error) or (isinstance(error, UnavailableError) and not wrong)

    def _is_held(self, error: ForkdecodeError) -> bool:
        """Whether the server may still hold the id of an attempt whose connection was lost."""
        return isinstance(error, InvalidRequestError) and error.field == "request_id" and self._lost > 0


def _jittered(backoff: float, hint: float | None) -> float:
    """Different for clients that failed together. Never before the server's hint."""
    share = random.random()
    return max(backoff * (0.5 + 0.5 * share), (hint or 0.0) * (1 + 0.2 * share))
