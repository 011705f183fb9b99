"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from forkdecode.calls.one_process import OneProcess
from forkdecode.errors import EngineClosedError

T = TypeVar("T")


class LoopThread:
    """Its methods may be called from any thread of the process that made it."""

    def __init__(self) -> None:
        self._home = OneProcess(
            "this client was opened before the process was forked: open clients in spawned processes"
        )
        self._loop = asyncio.new_event_loop()
        self._ending = False
        # Not a plain one: within post(), garbage may be collected whose end posts.
        self._posting = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="forkdecode-client", daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine there and waits; who stops waiting cancels it."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        async def run() -> None:
            task = asyncio.ensure_future(work())
            future.add_done_callback(lambda f: self.post(task.cancel) if f.cancelled() else None)
            try:
                result = await task
            except asyncio.CancelledError:
                _settle(future, EngineClosedError("the client was closed"))
            except BaseException as error:
                _settle(future, error)
            else:
                if future.set_running_or_notify_cancel():
                    future.set_result(result)

        self.post(lambda: self._loop.create_task(run()))
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def post(self, work: Callable[[], object]) -> None:
        """Runs `work` there, later.

        Raises UnavailableError in a forked child, where the thread does not exist, EngineClosedError
        once the loop is ending.
        """
        self._home.check()
        with self._posting:
            if self._ending:
                raise EngineClosedError("the client has been closed")
            self._loop.call_soon_threadsafe(work)

    def run(self, work: Callable[[], Coroutine[Any, Any, object]], seconds: float) -> None:
        """Runs a coroutine there and waits for it, but no longer, and not at all in the loop's own thread,
        where what was dropped may be collected. Raises as post() does."""
        done = threading.Event()

        def start() -> None:
            self._loop.create_task(work()).add_done_callback(lambda _: done.set())

        self.post(start)
        if threading.current_thread() is not self._thread:
            done.wait(seconds)

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs `last` there, then ends the loop and waits for that. Idempotent; no effect in a forked
        child."""
        if self._home.left:
            return
        with self._posting:
            first, self._ending = not self._ending, True
            if first:
                self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._end(last)))
        if threading.current_thread() is not self._thread:  # else: what was dropped is collected there
            self._thread.join()

    async def _end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await last()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        finally:
            self._loop.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(_report)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # grpcio's events are of all loops of the process. Before 1.80 each wakes every loop, and the others
    # find none; one that comes for a loop that has been closed is of no use to anybody.
    of_grpc = "PollerCompletionQueue" in str(context.get("message"))
    if not (of_grpc and isinstance(context.get("exception"), (BlockingIOError, RuntimeError))):
        loop.default_exception_handler(context)


def _settle(future: concurrent.futures.Future[Any], error: BaseException) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
