"""The engine's own thread. Callers talk to it through a queue; their code never runs in it."""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

from forkdecode.checks import told
from forkdecode.engine.core import Engine, forget_locals
from forkdecode.engine.port import Job
from forkdecode.errors import EngineClosedError, ForkdecodeError, GroupFailedError, invalid
from forkdecode.logs import get_logger
from forkdecode.results import EngineStats
from forkdecode.scheduler.events import GroupEvent, GroupFailed, GroupFinished
from forkdecode.scheduler.request import DecodeRequest, TreeOp

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Submit:
    job: Job


@dataclass(frozen=True, slots=True)
class _Cancel:
    request: DecodeRequest


@dataclass(frozen=True, slots=True)
class _Tree:
    op: TreeOp


@dataclass(frozen=True, slots=True)
class _Stats:
    answer: Future[EngineStats]


@dataclass(frozen=True, slots=True)
class _Close:
    pass


_Command: TypeAlias = _Submit | _Cancel | _Tree | _Stats | _Close


class EngineThread:
    """Runs an engine until closed. All methods may be called from any thread.

    An engine that nobody refers to any more, by an LLM or by a handle, closes itself. flush: called in
    the engine's thread when the sinks have got all that a step reported; the next step waits for it.
    """

    def __init__(self, engine: Engine, flush: Callable[[], None] = lambda: None) -> None:
        self._loop = _Loop(engine, flush)
        # Neither the thread nor the finalizer refers to this object, so that it can be dropped.
        self._thread = threading.Thread(target=self._loop.run, name="forkdecode-engine", daemon=True)
        weakref.finalize(self, _abandon, self._loop, self._thread)
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queues requests, all or none of them.

        Raises CapacityError for one that this engine can never serve, InvalidRequestError for an id
        in use, EngineClosedError after close.
        """
        self._loop.submit(jobs)

    def cancel(self, request: DecodeRequest) -> None:
        """Ends this very request before its next step; no effect on one that has ended, nor on a
        later one of the same id."""
        self._loop.inbox.put(_Cancel(request))

    def tree(self, op: TreeOp) -> None:
        """Shares or releases what nodes hold, in order with submit()."""
        self._loop.inbox.put(_Tree(op))

    def stats(self) -> EngineStats:
        """A snapshot taken between two steps. Raises EngineClosedError after close."""
        return self.ask_stats().result()

    def ask_stats(self) -> Future[EngineStats]:
        """stats(), for who doesn't want to wait. Raises EngineClosedError after close."""
        return self._loop.ask_stats()

    def step_seconds(self) -> float:
        """How long the step that runs now has taken; 0 between two. Asked from any thread."""
        return self._loop.step_seconds()

    def wait(self) -> None:
        """Until the engine is closed, or has died."""
        self._thread.join()

    def close(self) -> None:
        """Ends what is running with EngineClosedError and stops the thread. Idempotent."""
        self._loop.inbox.put(_Close())
        if threading.current_thread() is not self._thread:
            self._thread.join()


class _Loop:
    """What runs in the thread, and what the thread shares with its callers."""

    def __init__(self, engine: Engine, flush: Callable[[], None]) -> None:
        self.inbox: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._engine = engine
        self._flush = flush
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._step_began: float | None = None

    # -- in callers' threads ----------------------------------------------------------------------

    def submit(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._engine.check_request(job.request)
        with self._lock:
            taken = set(self._jobs)
            for job in jobs:
                name = job.request.request_id
                self._check_open(name)
                if name in taken:
                    raise invalid("request_id", f"{name!r} is in use", "an id of no running request")
                taken.add(name)
            for job in jobs:
                self._jobs[job.request.request_id] = job
                self.inbox.put(_Submit(job))

    def ask_stats(self) -> Future[EngineStats]:
        answer: Future[EngineStats] = Future()
        with self._lock:
            self._check_open()
            self.inbox.put(_Stats(answer))
        return answer

    def step_seconds(self) -> float:
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    def _check_open(self, request_id: str | None = None) -> None:
        if self._closed:
            raise EngineClosedError("the engine is closed", request_id=request_id)

    # -- in the engine's thread -------------------------------------------------------------------

    def run(self) -> None:
        """Serves until closed; then nothing is left waiting for an answer."""
        reason: BaseException | None = None
        try:
            while self._serve_inbox():
                self._deliver(self._step() if self._engine.has_work else ())
                self._flush()
        except BaseException as error:
            reason = error
            forget_locals(error)  # before whoever logs makes notes of them
            _log.exception("engine_died")
        finally:
            self._shut(reason)
            self._flush()

    def _step(self) -> Iterable[GroupEvent]:
        self._step_began = time.monotonic()
        try:
            return self._engine.step()
        finally:
            self._step_began = None

    def _serve_inbox(self) -> bool:
        """Takes every waiting command; waits for one when there is nothing else to do."""
        with contextlib.suppress(queue.Empty):
            while True:
                if idle := not self._engine.has_work:
                    self._flush()
                command = self.inbox.get(block=idle)
                if isinstance(command, _Close):
                    return False
                self._obey(command)
        return True

    def _obey(self, command: _Submit | _Cancel | _Tree | _Stats) -> None:
        if isinstance(command, _Submit):
            self._admit(command.job)
        elif isinstance(command, _Tree):
            self._engine.tree(command.op)
        elif isinstance(command, _Stats):
            command.answer.set_result(self._engine.stats())
        else:
            name = command.request.request_id
            job = self._jobs.get(name)
            if job is not None and job.request is command.request:
                self._deliver(self._engine.cancel(name))

    def _admit(self, job: Job) -> None:
        name = job.request.request_id
        try:
            self._engine.submit(job.request)
        except ForkdecodeError as error:
            self._end(name, error)
        except Exception as error:
            failure = GroupFailedError(f"internal error: {told(error)}", request_id=name)
            failure.__cause__ = error
            self._end(name, failure)

    def _deliver(self, events: Iterable[GroupEvent]) -> None:
        for event in events:
            if isinstance(event, (GroupFinished, GroupFailed)):
                self._end(event.request_id, event)
            else:
                self._jobs[event.request_id].sink(event)

    def _end(self, request_id: str, last: GroupEvent | ForkdecodeError) -> None:
        with self._lock:
            job = self._jobs.pop(request_id)
        job.sink(last)

    def _shut(self, reason: BaseException | None) -> None:
        with self._lock:
            self._closed = True
            left, self._jobs = self._jobs, {}
        text = "the engine was closed" if reason is None else f"the engine died: {told(reason)}"
        for name, job in left.items():
            error = EngineClosedError(f"{text} before the request finished", request_id=name)
            error.__cause__ = reason
            job.sink(error)
        with contextlib.suppress(queue.Empty):
            while True:
                command = self.inbox.get_nowait()
                if isinstance(command, _Stats):
                    command.answer.set_exception(EngineClosedError(text))
        self._engine.close()


def _abandon(loop: _Loop, thread: threading.Thread) -> None:
    """Closes a loop that nobody refers to. Whoever happens to collect garbage does not wait for it;
    but the interpreter must not go down under a thread that is inside torch."""
    loop.inbox.put(_Close())
    if threading.main_thread().is_alive():
        atexit.register(thread.join)
    else:
        thread.join()
