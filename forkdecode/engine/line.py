"""Messages that wait for something, and those that must not overtake them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from forkdecode.logs import get_logger

M = TypeVar("M")
_log = get_logger(__name__)


@dataclass(eq=False, slots=True)
class _Place(Generic[M]):
    message: M
    keys: Set[str]
    waits_for: int


class Line(Generic[M]):
    """Has each message served when what it waits for is done, and after all earlier ones that have a key in
    common with it. Those that wait for nothing and nobody are served at once, in the caller's thread, the
    others in a thread that begins with the first of them. One is served at a time.
    """

    def __init__(self, serve: Callable[[M], None]) -> None:
        self._serve = serve
        self._lock = threading.RLock()
        self._places: list[_Place[M]] = []
        self._changed: queue.SimpleQueue[_Place[M] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def take(self, message: M, keys: Set[str], waits_for: Sequence[Future[Any]]) -> None:
        """waits_for: however they end."""
        with self._lock:
            if not waits_for and not self._is_behind(keys, self._places):
                self._serve(message)
                return
            place = _Place(message, keys, len(waits_for))
            self._places.append(place)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="forkdecode-line", daemon=True)
                self._thread.start()
        for future in waits_for:
            future.add_done_callback(lambda _: self._changed.put(place))

    def between(self) -> AbstractContextManager[object]:
        """While it lasts, nothing is served."""
        return self._lock

    def holds(self, kind: Callable[[M], bool]) -> bool:
        """Whether a message of a kind waits."""
        with self._lock:
            return any(kind(place.message) for place in self._places)

    def close(self) -> None:
        """What still waits is never served. Idempotent."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._places.clear()
        if thread is not None:
            self._changed.put(None)
            thread.join()

    def _run(self) -> None:
        while (place := self._changed.get()) is not None:
            with self._lock:
                place.waits_for -= 1
                self._serve_ready()

    def _serve_ready(self) -> None:
        waiting: list[_Place[M]] = []
        for place in self._places:
            if place.waits_for or self._is_behind(place.keys, waiting):
                waiting.append(place)
                continue
            try:
                self._serve(place.message)
            except Exception:
                _log.exception("engine_line_broken")
        self._places = waiting

    @staticmethod
    def _is_behind(keys: Set[str], places: Sequence[_Place[M]]) -> bool:
        return any(not keys.isdisjoint(place.keys) for place in places)
