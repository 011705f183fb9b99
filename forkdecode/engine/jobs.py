"""Which requests run in an engine process, and who hears of them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forkdecode.engine.port import Job
from forkdecode.errors import ForkdecodeError, invalid
from forkdecode.logs import get_logger
from forkdecode.scheduler.events import GroupEvent, GroupFailed, GroupFinished
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.wire.messages import Refused

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Entry:
    job: Job
    number: int


class JobTable:
    """Jobs by request id, each with a number that no other job ever has. Safe in several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._next = 1

    def reserve(self, count: int) -> int:
        """The first of `count` numbers."""
        with self._lock:
            first = self._next
            self._next += count
            return first

    def add(self, jobs: Sequence[Job], first: int) -> None:
        """Takes all or none; they are numbered from `first`. Raises InvalidRequestError for an id in use."""
        with self._lock:
            new: dict[str, _Entry] = {}
            for number, job in enumerate(jobs, first):
                name = job.request.request_id
                if name in self._entries or name in new:
                    raise invalid("request_id", f"{name!r} is in use", "an id of no running request")
                new[name] = _Entry(job, number)
            self._entries.update(new)

    def number_of(self, request: DecodeRequest) -> int | None:
        """Of this very request, while it runs."""
        with self._lock:
            entry = self._entries.get(request.request_id)
            return entry.number if entry is not None and entry.job.request is request else None

    def deliver(self, events: Iterable[GroupEvent | Refused]) -> None:
        """Each to its sink, in order. A last event frees its id first."""
        for event in events:
            last = isinstance(event, (GroupFinished, GroupFailed, Refused))
            with self._lock:
                find = self._entries.pop if last else self._entries.get
                entry = find(event.request_id, None)
            if entry is not None:
                tell(entry.job, event.error if isinstance(event, Refused) else event)

    def clear(self) -> list[Job]:
        """Takes out what is left."""
        with self._lock:
            left, self._entries = self._entries, {}
            return [entry.job for entry in left.values()]


def tell(job: Job, event: GroupEvent | ForkdecodeError) -> None:
    """A sink that raises is its owner's fault, and nobody else's loss."""
    try:
        job.sink(event)
    except Exception:
        _log.exception("sink_failed", request_id=job.request.request_id)
