"""Threads for what would hold up the event loop."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor

LARGE = 2**16
"""Bytes of a request, a command or of events that are large: not to be converted in the loop, where they take
a millisecond or more, and nothing that what is small should wait for."""
_THREADS = 2
_WAITING_THREADS = 4


class Workers:
    """Two threads for what is small and two for what is large: long prompts, which may take seconds each,
    hold up one another alone. Four of each kind for what may have to wait, for a grammar to be compiled."""

    def __init__(self, name: str) -> None:
        self.small: Executor = ThreadPoolExecutor(_THREADS, thread_name_prefix=name)
        self.large: Executor = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"{name}-large")
        self._waiting = ThreadPoolExecutor(_WAITING_THREADS, thread_name_prefix=f"{name}-waiting")
        self._large_waiting = ThreadPoolExecutor(_WAITING_THREADS, thread_name_prefix=f"{name}-large-waiting")

    def of(self, size: int, *, waits: bool = False) -> Executor:
        """Those for something of so many bytes. waits: whether it may have to wait for something."""
        if waits:
            return self._waiting if size < LARGE else self._large_waiting
        return self.small if size < LARGE else self.large

    def close(self) -> None:
        """What has not begun never will. Waits for nothing. Idempotent."""
        for executor in (self.small, self.large, self._waiting, self._large_waiting):
            executor.shutdown(wait=False, cancel_futures=True)
