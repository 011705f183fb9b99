"""The engine's own thread. Callers talk to it through a queue; their code never runs in it."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NoReturn

from forkdecode.calls.one_process import ENGINE, OneProcess
from forkdecode.engine.commands import Cancel, Close, Tree
from forkdecode.engine.core import Engine
from forkdecode.engine.loop import EngineLoop
from forkdecode.engine.port import Job
from forkdecode.errors import (
    called_by_engine,
)
from forkdecode.logs import get_logger
from forkdecode.model.prepared import PreparedModel
from forkdecode.results import EngineStats
from forkdecode.scheduler.request import DecodeRequest, TreeOp

_log = get_logger(__name__)


class EngineThread:
    """Runs an engine until closed. All methods may be called from any thread.

    An engine that nobody refers to any more, by an LLM or by a handle, closes itself. flush: called in
    the engine's thread when the sinks have got all that a step reported; the next step waits for it.
    is_calling: whether the thread that asks is one that steps wait for. There, in the engine's own, and in a
    forked child, whatever would wait raises UnavailableError; in a forked child all else does nothing.
    """

    def __init__(
        self,
        engine: Engine,
        flush: Callable[[], None] = lambda: None,
        is_calling: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_calling = is_calling
        self._home = OneProcess(ENGINE)
        self._loop = EngineLoop(engine, flush)
        # Neither the thread nor the finalizer refers to this object, so that it can be dropped.
        self._thread = threading.Thread(target=self._loop.run, name="forkdecode-engine", daemon=True)
        weakref.finalize(self, _abandon, self._home, self._loop, self._thread)
        self._thread.start()

    def __reduce__(self) -> NoReturn:
        """All that an LLM hands out holds its engine, which is of one process and has one owner."""
        raise TypeError(
            "an engine cannot be copied or sent to another process, nor what holds it (an LLM, handle, "
            "stream or tree): make an LLM there"
        )

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queues requests, all or none of them.

        Raises CapacityError for one that this engine can never serve, InvalidRequestError for an id
        in use, EngineClosedError after close.
        """
        self.check_caller()
        self._loop.submit(jobs)

    def cancel(self, request: DecodeRequest) -> None:
        """Ends this very request before its next step; no effect on one that has ended, nor on a
        later one of the same id."""
        if not self._home.left:
            self._loop.inbox.put(Cancel(request))

    def tree(self, op: TreeOp) -> None:
        """Shares or releases what nodes hold, in order with submit()."""
        if not self._home.left:
            self._loop.inbox.put(Tree(op))

    def update(self, model: PreparedModel) -> None:
        """Computes with another model of the same sizes once all that was sent before has ended; what is sent
        after waits until then. Waits itself; interrupted, it changes nothing unless it is done.

        Raises what Engine.update raises, EngineClosedError after close.
        """
        self.check_caller()
        self._loop.update(model)

    def stats(self) -> EngineStats:
        """A snapshot taken between two steps. Raises EngineClosedError after close."""
        return self.ask_stats().result()

    def ask_stats(self) -> Future[EngineStats]:
        """stats(), for who doesn't want to wait. Raises EngineClosedError after close."""
        self.check_caller()
        return self._loop.ask_stats()

    def step_seconds(self) -> float:
        """How long the step that runs now has taken; 0 between two. Asked from any thread."""
        return self._loop.step_seconds()

    def wait(self) -> None:
        """Until the engine is closed, or has died."""
        self._thread.join()

    def close(self) -> None:
        """Ends what is running with EngineClosedError and stops the thread. Idempotent."""
        self.hang_up()
        if not self._home.left:
            self._thread.join()

    def hang_up(self) -> None:
        """close(), for who doesn't want to wait."""
        if not self._home.left:
            self.check_caller()
            self._loop.inbox.put(Close())

    def check_caller(self) -> None:
        """Raises UnavailableError where whoever waits for the engine would wait for ever."""
        self._home.check()
        if threading.current_thread() is self._thread or self._is_calling():
            raise called_by_engine()


def _abandon(home: OneProcess, loop: EngineLoop, thread: threading.Thread) -> None:
    """Closes a loop that nobody refers to. Whoever happens to collect garbage does not wait for it;
    but the interpreter must not go down under a thread that is inside torch."""
    if home.left:
        return
    loop.inbox.put(Close())
    if threading.main_thread().is_alive():
        atexit.register(thread.join)
    else:
        thread.join()
