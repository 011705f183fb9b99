"""Keeps an engine process running, and tells everybody who waits for it when it dies. No torch."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Literal, TypeAlias

from forkdecode.engine.crossing import check_fits
from forkdecode.engine.jobs import JobTable, tell
from forkdecode.engine.patience import Patience
from forkdecode.engine.port import Job
from forkdecode.engine.spawn import UNSENT_BYTES, Child
from forkdecode.engine.submission import submits
from forkdecode.engine.watch import Watch
from forkdecode.errors import (
    EngineClosedError,
    ForkdecodeError,
    ModelLoadError,
    QueueFullError,
    UnavailableError,
)
from forkdecode.logs import get_logger
from forkdecode.results import EngineStats
from forkdecode.scheduler.request import DecodeRequest, TreeOp
from forkdecode.wire.messages import (
    AskStats,
    Cancel,
    Events,
    Failed,
    Hello,
    Refused,
    Start,
    Stats,
    Tree,
)

EngineState: TypeAlias = Literal["starting", "serving", "down"]
RETRY_AFTER = 1.0
"""Seconds after which a request that died with its engine may be sent again."""
FIRST_DELAY, LONGEST_DELAY = 0.1, 10.0
"""Seconds before a process is started again; doubled each time that it dies within STEADY seconds."""
STEADY = 30.0
DEATH_GRACE = 2.0
"""Seconds that a process which hung up has to end by itself."""
END_GRACE = 15.0
"""The same for one that was told to end; a step may have to finish."""
_log = get_logger(__name__)


class Supervisor:
    """What runs in the thread, and what the thread shares with callers. start: the first message to each
    process, its scratch folder left open. See EngineProcess for the rest, and for what methods promise."""

    def __init__(self, start: Start, restart: bool, flush: Callable[[], None], patience: Patience) -> None:
        self.started: Future[Hello] = Future()
        self._latest: Hello | None = None
        self._start = start
        self._restart = restart
        self._flush = flush
        self._patience = patience
        # hang_up() is called by whoever happens to collect garbage, of these threads too: it may come within
        # anything that they do, so it takes no plain lock.
        self._lock = threading.RLock()
        self._child: Child | None = None
        self._serving = False
        self._closed = False
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._jobs = JobTable()
        self._asked: dict[int, Future[EngineStats]] = {}
        self._number = 0
        self._telling = threading.RLock()
        self._state: EngineState = "starting"
        self._listeners: list[Callable[[EngineState], None]] = []
        self._ready_at = time.monotonic()
        self._load_seconds = RETRY_AFTER

    # -- in callers' threads ----------------------------------------------------------------------

    def first(self) -> Hello:
        if not self.started.done():
            raise UnavailableError("the engine process has not started")
        return self.started.result()

    def latest(self) -> Hello:
        """Of the process that serves now, or did last: its pool is as large as the memory that it found."""
        return self._latest or self.first()

    @property
    def pid(self) -> int | None:
        child = self._child
        return None if child is None else child.pid

    def on_state(self, heard: Callable[[EngineState], None]) -> None:
        with self._telling:
            self._listeners.append(heard)
            heard(self._state)

    def submit(self, jobs: Sequence[Job]) -> None:
        with self._lock:
            self._check_serving()
        for job in jobs:
            check_fits(job.request, self.latest(), self._start.config)
        first = self._jobs.reserve(len(jobs))
        messages = submits([job.request for job in jobs], first, UNSENT_BYTES)
        with self._lock:
            child = self._check_serving()
            if not child.has_room(sum(map(len, messages))):
                raise QueueFullError("the engine process is behind with requests", retry_after=RETRY_AFTER)
            self._jobs.add(jobs, first)
            for message in messages:
                child.put(message)

    def cancel(self, request: DecodeRequest) -> None:
        with self._lock:
            number = self._jobs.number_of(request)
            if number is not None and self._child is not None:
                self._child.send(Cancel(number))

    def tree(self, op: TreeOp) -> None:
        with self._lock:
            if self._child is not None and self._serving:
                self._child.send(Tree(op))

    def ask_stats(self) -> Future[EngineStats]:
        answer: Future[EngineStats] = Future()
        with self._lock:
            child = self._check_serving()
            self._number += 1
            self._asked[self._number] = answer
            child.send(AskStats(self._number))
        return answer

    def hang_up(self) -> None:
        """Ends the process, and the thread with it."""
        with self._lock:
            self._closed = True
            self._woken.put(None)
            if self._child is not None:
                self._child.hang_up()

    def _check_serving(self) -> Child:
        if self._closed:
            raise EngineClosedError("the engine is closed")
        if self._child is None or not self._serving:
            if not self._restart and self.started.done():
                raise UnavailableError("the engine process is gone")
            wait = max(RETRY_AFTER, self._ready_at - time.monotonic())
            raise UnavailableError("the engine process is starting", retry_after=round(wait, 1))
        return self._child

    # -- in the supervisor's thread ---------------------------------------------------------------

    def run(self) -> None:
        """Processes, one after the other, until closed or until the first can't start."""
        try:
            with tempfile.TemporaryDirectory(prefix="forkdecode-", ignore_cleanup_errors=True) as scratch:
                self._start = dataclasses.replace(self._start, scratch=scratch)
                delay = FIRST_DELAY
                while not self._closed:
                    steady = self._one_life()
                    if self._closed or not self._goes_on():
                        return
                    delay = FIRST_DELAY if steady else min(2 * delay, LONGEST_DELAY)
                    with contextlib.suppress(queue.Empty):
                        self._woken.get(timeout=delay)
        except BaseException as error:
            _log.exception("engine_supervisor_died")
            self._tell_failure(error)
        finally:
            self._closed = True
            self._tell("down")
            self._tell_failure(UnavailableError("the engine was closed before it had started"))

    def _goes_on(self) -> bool:
        return self._restart and self.started.exception() is None

    def _one_life(self) -> bool:
        """One process, from its start to its end. Returns whether it lived long."""
        began = time.monotonic()
        self._tell("starting")
        try:
            child = Child(dataclasses.replace(self._start, again=self.started.done()))
        except (OSError, RuntimeError) as error:  # no memory, descriptor or thread for it
            self._report(UnavailableError(f"no engine process can be started: {error}"))
            return False
        with self._lock:
            self._child = child
            if self._closed:
                child.hang_up()
        try:
            with Watch(child, self._patience) as watch:
                problem = self._listen(watch, began)
            problem = watch.verdict or problem
        except RuntimeError as error:
            problem = UnavailableError(f"no engine process can be watched: {error}")
        self._bury(child, problem)
        return time.monotonic() - began > STEADY

    def _listen(self, watch: Watch, began: float) -> Exception | None:
        """Until the process hangs up. Returns what was wrong with it, if it said so."""
        try:
            self._greet(watch)
            self._load_seconds = time.monotonic() - began
            while (message := watch.receive()) is not None:
                self._hear(message)
        except ForkdecodeError as error:
            return error
        except ValueError as error:
            return UnavailableError(f"the engine process can't be understood: {error}")
        except Exception as error:  # of ours: whoever waits is told, as when the process dies
            _log.exception("engine_process_broken")
            return UnavailableError(f"internal error: {type(error).__name__}")
        return None

    def _greet(self, watch: Watch) -> None:
        """Waits until the process serves. Raises what it failed with."""
        hello = watch.receive()
        if isinstance(hello, Failed):
            raise hello.error
        if hello is None:
            return
        if not isinstance(hello, Hello):
            raise ValueError(f"a {type(hello).__name__} is no beginning")
        if self.started.done():
            self._check_same(hello)
        with self._lock:
            self._latest = hello
            self._serving = True
        if not self.started.done():
            self.started.set_result(hello)
        self._tell("serving")

    def _check_same(self, hello: Hello) -> None:
        """Requests were checked against the first process's model: another one can't take its place."""
        if hello.info != self.first().info:
            raise ModelLoadError("the model is not what it was when the service started", field="model")

    def _hear(self, message: object) -> None:
        if isinstance(message, Events):
            for event in message.events:
                if isinstance(event, Refused) and isinstance(event.error, EngineClosedError):
                    event.error.retry_after = self._retry_after()
            self._jobs.deliver(message.events)
            self._flush()
        elif isinstance(message, Stats):
            with self._lock:
                answer = self._asked.pop(message.number, None)
            if answer is not None:
                answer.set_result(message.stats)
        else:
            raise ValueError(f"a {type(message).__name__} is nothing that an engine says")

    def _bury(self, child: Child, error: Exception | None) -> None:
        """The process is of no use any more: ends it, and tells everybody who waits for it."""
        closed = self._closed
        with self._lock:
            served, self._serving = self._serving, False
            self._ready_at = time.monotonic() + self._load_seconds
        self._tell("down")
        ended = child.end(END_GRACE if closed and served else DEATH_GRACE)
        with self._lock:
            self._child = None
            left, asked = self._jobs.clear(), list(self._asked.values())
            self._asked.clear()
        text = "the engine was closed" if closed else f"the engine process died ({error or ended})"
        retry = self._retry_after()
        for job in left:
            name = job.request.request_id
            tell(
                job,
                EngineClosedError(f"{text} before the request finished", request_id=name, retry_after=retry),
            )
        for answer in asked:
            answer.set_exception(EngineClosedError(text, retry_after=retry))
        self._flush()
        if not closed:
            self._report(error or UnavailableError(f"the engine process ended: {ended}"))

    def _retry_after(self) -> float | None:
        return RETRY_AFTER if self._restart and not self._closed else None

    def _report(self, error: Exception) -> None:
        _log.error("engine_process_down", reason=str(error))
        self._tell_failure(error)

    def _tell_failure(self, error: BaseException) -> None:
        if not self.started.done():
            self.started.set_exception(error)

    def _tell(self, state: EngineState) -> None:
        with self._telling:
            if state == self._state:
                return
            self._state = state
            for heard in self._listeners:
                try:
                    heard(state)
                except Exception:  # its owner's fault, and nobody else's loss
                    _log.exception("listener_failed")
