"""The step loop of an engine: commands in, steps, and what they report out."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from forkdecode.checks import told
from forkdecode.engine.commands import Cancel, Close, Command, InOrder, Stats, Submit, Tree, Update
from forkdecode.engine.core import Engine, forget_locals
from forkdecode.engine.port import Job
from forkdecode.errors import EngineClosedError, ForkdecodeError, GroupFailedError, invalid
from forkdecode.logs import get_logger
from forkdecode.model.prepared import PreparedModel
from forkdecode.results import EngineStats
from forkdecode.scheduler.events import GroupEvent, GroupFailed, GroupFinished
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.step import DeviceLostError

_log = get_logger(__name__)


class EngineLoop:
    """What runs in the thread, and what the thread shares with its callers."""

    def __init__(self, engine: Engine, flush: Callable[[], None]) -> None:
        self.inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._engine = engine
        self._flush = flush
        self._jobs: dict[str, Job] = {}
        self._behind: deque[InOrder] = deque()
        """The update that waits until the engine is idle, and what was sent after it."""
        self._lock = threading.Lock()
        self._closed = False
        self._step_began: float | None = None
        self._untold: Sequence[GroupEvent] = ()

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
                self.inbox.put(Submit(job))

    def ask_stats(self) -> Future[EngineStats]:
        answer: Future[EngineStats] = Future()
        with self._lock:
            self._check_open()
            self.inbox.put(Stats(answer))
        return answer

    def update(self, model: PreparedModel) -> None:
        answer: Future[None] = Future()
        with self._lock:
            self._check_open()
            self.inbox.put(Update(model, answer))
        try:
            answer.result()
        except BaseException:
            answer.cancel()
            raise

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
                self._step()
        except BaseException as error:
            reason = error
            forget_locals(error)  # before whoever logs makes notes of them
            _log.exception("engine_died")
        finally:
            self._shut(reason)
            self._flush()

    def _step(self) -> None:
        """What it reports is told at once, or while the next one is computed."""
        if self._engine.has_work:
            self._step_began = time.monotonic()
            try:
                self._untold = self._engine.step(self._beside)
            finally:
                self._step_began = None
        if not self._engine.overlaps:
            self._tell()
        self._flush()

    def _beside(self) -> None:
        """Who is told may have to be waited for: that makes no long step."""
        self._step_began = None
        self._tell()
        self._flush()
        self._step_began = time.monotonic()

    def _tell(self) -> None:
        """What steps and cancellations have reported."""
        events, self._untold = self._untold, ()
        self._deliver(events)
        self._deliver(self._engine.tell())

    def _serve_inbox(self) -> bool:
        """Takes every waiting command; waits for one when there is nothing else to do."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._catch_up()
                if idle := not self._engine.has_work:
                    self._tell()
                    self._flush()
                if not self._take(wait=idle):
                    return False
        return True

    def _catch_up(self) -> None:
        """An update's turn comes when nothing runs; then that of what was sent after it."""
        while self._behind and not (isinstance(self._behind[0], Update) and self._engine.has_work):
            self._obey(self._behind.popleft())

    def _take(self, *, wait: bool) -> bool:
        """Whether to go on. Raises queue.Empty."""
        command = self.inbox.get(block=wait)
        if isinstance(command, Close):
            return False
        if isinstance(command, Stats):
            command.answer.set_result(self._engine.stats())
        elif isinstance(command, Cancel):
            self._cancel(command.request)
        elif self._behind or isinstance(command, Update):
            self._behind.append(command)
        else:
            self._obey(command)
        return True

    def _obey(self, command: InOrder) -> None:
        self._tell()
        if isinstance(command, Submit):
            if self._jobs.get(command.job.request.request_id) is command.job:  # not cancelled while it waited
                self._admit(command.job)
        elif isinstance(command, Tree):
            self._engine.tree(command.op)
        else:
            self._update(command)

    def _update(self, command: Update) -> None:
        if not command.answer.set_running_or_notify_cancel():
            return
        try:
            self._engine.update(command.model)
        except DeviceLostError as error:
            command.answer.set_exception(EngineClosedError(f"the engine died: {told(error)}"))
            raise
        except Exception as error:
            command.answer.set_exception(error)
        else:
            command.answer.set_result(None)

    def _cancel(self, request: DecodeRequest) -> None:
        self._tell()  # it may have finished
        name = request.request_id
        job = self._jobs.get(name)
        if job is None or job.request is not request:
            return
        if name not in self._engine.scheduler.groups:  # it waits behind an update
            self._admit(job)
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
        with contextlib.suppress(Exception):  # the reason may be what telling has raised
            self._tell()
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
                command: Command = self._behind.popleft() if self._behind else self.inbox.get_nowait()
                if isinstance(command, Stats | Update) and command.answer.set_running_or_notify_cancel():
                    command.answer.set_exception(EngineClosedError(text))
        self._engine.close()
