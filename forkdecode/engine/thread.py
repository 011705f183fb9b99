"""The engine's own thread. Callers talk to it through a queue; their code never runs in it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from forkdecode.engine.core import Engine
from forkdecode.errors import EngineClosedError, ForkdecodeError, invalid
from forkdecode.scheduler.events import GroupEvent, GroupFailed, GroupFinished
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.scheduler.stats import EngineStats

Sink: TypeAlias = Callable[[GroupEvent | ForkdecodeError], None]
"""Takes a request's events, or the error that ended it, in the engine thread: must not block."""

_log = structlog.get_logger("forkdecode.engine")


@dataclass(frozen=True, slots=True)
class _Submit:
    request: DecodeRequest


@dataclass(frozen=True, slots=True)
class _Cancel:
    request_id: str


@dataclass(frozen=True, slots=True)
class _Stats:
    answer: Future[EngineStats]


@dataclass(frozen=True, slots=True)
class _Close:
    pass


_Command: TypeAlias = _Submit | _Cancel | _Stats | _Close


class EngineThread:
    """Runs an engine until closed. All methods may be called from any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inbox: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._sinks: dict[str, Sink] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="forkdecode-engine", daemon=True)
        self._thread.start()

    def submit(self, request: DecodeRequest, sink: Sink) -> None:
        """Queues a request; `sink` gets its events.

        Raises InvalidRequestError for an id in use, EngineClosedError after close.
        """
        with self._lock:
            if self._closed:
                raise EngineClosedError("the engine is closed", request_id=request.request_id)
            if request.request_id in self._sinks:
                raise invalid(
                    "request_id", f"{request.request_id!r} is in use", "an id of no running request"
                )
            self._sinks[request.request_id] = sink
            self._inbox.put(_Submit(request))

    def cancel(self, request_id: str) -> None:
        """Ends a request before its next step. Unknown or finished ids are ignored."""
        self._inbox.put(_Cancel(request_id))

    def stats(self) -> EngineStats:
        """A snapshot taken between two steps. Raises EngineClosedError after close."""
        answer: Future[EngineStats] = Future()
        with self._lock:
            if self._closed:
                raise EngineClosedError("the engine is closed")
            self._inbox.put(_Stats(answer))
        return answer.result()

    def close(self) -> None:
        """Ends what is running with EngineClosedError and stops the thread. Idempotent."""
        self._inbox.put(_Close())
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        reason: BaseException | None = None
        try:
            while self._serve_inbox():
                self._deliver(self._engine.step() if self._engine.has_work else ())
        except BaseException as error:
            reason = error
            _log.exception("engine_died")
        finally:
            self._shut(reason)

    def _serve_inbox(self) -> bool:
        """Takes every waiting command; waits for one when there is nothing else to do."""
        with contextlib.suppress(queue.Empty):
            while True:
                command = self._inbox.get(block=not self._engine.has_work)
                if isinstance(command, _Close):
                    return False
                self._obey(command)
        return True

    def _obey(self, command: _Submit | _Cancel | _Stats) -> None:
        if isinstance(command, _Submit):
            try:
                self._engine.submit(command.request)
            except ForkdecodeError as error:
                self._end(command.request.request_id, error)
        elif isinstance(command, _Cancel):
            self._deliver(self._engine.cancel(command.request_id))
        else:
            command.answer.set_result(self._engine.stats())

    def _deliver(self, events: Iterable[GroupEvent]) -> None:
        for event in events:
            if isinstance(event, (GroupFinished, GroupFailed)):
                self._end(event.request_id, event)
            else:
                sink = self._sinks.get(event.request_id)
                if sink is not None:
                    sink(event)

    def _end(self, request_id: str, last: GroupEvent | ForkdecodeError) -> None:
        with self._lock:
            sink = self._sinks.pop(request_id, None)
        if sink is not None:
            sink(last)

    def _shut(self, reason: BaseException | None) -> None:
        with self._lock:
            self._closed = True
            left = dict(self._sinks)
            self._sinks.clear()
        text = "the engine was closed" if reason is None else f"the engine died: {reason!r}"
        for request_id, sink in left.items():
            error = EngineClosedError(f"{text} before the request finished", request_id=request_id)
            error.__cause__ = reason
            sink(error)
        with contextlib.suppress(queue.Empty):
            while True:
                command = self._inbox.get_nowait()
                if isinstance(command, _Stats):
                    command.answer.set_exception(EngineClosedError(text))
