"""The engine process's side of what is said: messages in."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from forkdecode.engine.line import Line
from forkdecode.engine.outgoing import Outgoing
from forkdecode.engine.port import Job
from forkdecode.engine.submission import requests_of
from forkdecode.engine.thread import EngineThread
from forkdecode.engine.whole import Maker
from forkdecode.errors import ForkdecodeError, GroupFailedError, own
from forkdecode.logs import get_logger
from forkdecode.scheduler.request import DecodeRequest, Release
from forkdecode.wire.frames import FrameReader
from forkdecode.wire.messages import AskStats, Cancel, Events, Refused, Stats, Submit, Tree
from forkdecode.wire.records import CODEC

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a Submit asks for. number: the first request's."""

    number: int
    requests: tuple[DecodeRequest, ...]


class Desk:
    """Takes the front end's messages, in a thread of its own, until it hangs up.

    Nobody waits for another's grammar to be compiled: its request stands in a line meanwhile, and with it
    what comes after it for the same tree.
    """

    def __init__(self, thread: EngineThread, outgoing: Outgoing, maker: Maker) -> None:
        self._thread = thread
        self._outgoing = outgoing
        self._maker = maker
        self._live: dict[int, DecodeRequest] = {}
        self._line = Line(self._serve)
        self._cancelled: set[int] = set()

    def run(self, reader: FrameReader) -> None:
        """Ends the engine at the end."""
        try:
            while (data := reader.read()) is not None:
                self._obey(CODEC.decode(data))
        except Exception:
            _log.exception("engine_inbox_broken")
        finally:
            self._thread.close()
            self._line.close()
            self._maker.close()

    def _obey(self, message: object) -> None:
        if isinstance(message, Submit):
            asked = _Asked(message.number, requests_of(message))
            begun = map(self._maker.begin, asked.requests)
            self._line.take(asked, _trees(asked), [one for one in begun if one is not None])
        elif isinstance(message, Tree):
            op = message.op
            self._line.take(message, {op.tree if isinstance(op, Release) else op.source.tree}, [])
        elif isinstance(message, Cancel):
            with self._line.between():
                self._cancel(message.number)
        elif isinstance(message, AskStats):
            self._ask_stats(message.number)
        else:
            raise ValueError(f"a {type(message).__name__} is nothing to say to an engine")

    def _cancel(self, number: int) -> None:
        request = self._live.get(number)
        if request is not None:
            self._thread.cancel(request)
        elif self._line.holds(lambda waits: isinstance(waits, _Asked) and number in _numbers(waits)):
            self._cancelled.add(number)

    def _serve(self, message: _Asked | Tree) -> None:
        if isinstance(message, Tree):
            self._thread.tree(message.op)
            return
        self._submit(message)
        for number in self._cancelled.intersection(_numbers(message)):
            self._cancelled.discard(number)
            self._cancel(number)

    def _submit(self, message: _Asked) -> None:
        numbers = _numbers(message)
        try:
            jobs = [self._job(*pair) for pair in zip(numbers, message.requests, strict=True)]
            self._thread.submit(jobs)
        except Exception as error:
            for number in numbers:
                self._live.pop(number, None)
            self._outgoing.send(Events(tuple(_refused(request, error) for request in message.requests)))

    def _job(self, number: int, sent: DecodeRequest) -> Job:
        request = self._maker.whole(sent)
        self._live[number] = request
        sink = self._outgoing.sink(
            request.request_id,
            ended=lambda: self._live.pop(number, None),
            cancel=lambda: self._thread.cancel(request),
        )
        return Job(request, sink)

    def _ask_stats(self, number: int) -> None:
        # A dead engine answers nothing: the process ends, and that is the answer.
        with contextlib.suppress(ForkdecodeError):
            answer = self._thread.ask_stats()
            answer.add_done_callback(
                lambda done: None if done.exception() else self._outgoing.send(Stats(number, done.result()))
            )


def _refused(request: DecodeRequest, error: Exception) -> Refused:
    if not isinstance(error, ForkdecodeError):
        _log.error("request_broken", request_id=request.request_id, exc_info=error)
        problem = f"internal error: {type(error).__name__}: {error}"
        error = GroupFailedError(problem)
    return Refused(request.request_id, own(error, request.request_id))


def _numbers(message: _Asked) -> range:
    return range(message.number, message.number + len(message.requests))


def _trees(message: _Asked) -> set[str]:
    refs = (ref for request in message.requests for ref in (request.origin, request.keep))
    return {ref.tree for ref in refs if ref is not None}
