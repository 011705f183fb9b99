"""How long a tree's methods wait."""

from __future__ import annotations

import time

from forkdecode.errors import DeadlineError, ForkdecodeError


class Wait:
    """One method's. timeout: seconds for all of it, None for no limit."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._end = None if timeout is None else time.monotonic() + timeout

    def left(self) -> float | None:
        """Seconds; None for no limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def failure(self, error: TimeoutError) -> ForkdecodeError:
        """What its caller is told of `error`: its own time is over, or what ended the session was one."""
        if isinstance(error, ForkdecodeError):
            return error
        return DeadlineError(f"timeout: not done after {self._timeout:g} s", field="timeout")
