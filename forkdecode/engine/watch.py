"""Notices an engine process that lives and does nothing: stopped, or in a step that never ends."""

from __future__ import annotations

import threading
from typing import Any

from forkdecode.engine.patience import SLICES, Patience
from forkdecode.engine.spawn import Child
from forkdecode.errors import UnavailableError
from forkdecode.logs import get_logger
from forkdecode.wire.messages import Beat

_log = get_logger(__name__)


class Watch:
    """Over one child, while the context lasts. verdict: why it was ended, or None."""

    def __init__(self, child: Child, patience: Patience) -> None:
        self.verdict: UnavailableError | None = None
        self._child = child
        self._patience = patience
        self._words = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forkdecode-watch", daemon=True)
        self._thread.start()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def receive(self) -> Any:
        """What Child.receive() does, but for beats."""
        while (message := self._child.receive()) is not None:
            self._words += 1
            if not isinstance(message, Beat):
                return message
            if message.step_seconds > self._patience.step and self.verdict is None:
                self._end(f"a step took more than {self._patience.step:g} seconds")
        return None

    def _run(self) -> None:
        silence, first = self._patience.silence, self._patience.step
        silent = words = 0
        while not self._closed.wait(silence / SLICES):
            if self._words != words or self._child.has_said_more():
                silent, words = 0, self._words
                continue
            silent += 1
            limit = silence if words else max(silence, first)
            if silent * silence >= limit * SLICES:
                self._end(f"it said nothing for {limit:g} seconds")
                return

    def _end(self, why: str) -> None:
        self.verdict = UnavailableError(f"it was ended: {why}")
        _log.error("engine_process_hangs", reason=why)
        self._child.kill()
