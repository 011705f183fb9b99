"""Notices an engine process that lives and does nothing: stopped, or in a step that never ends."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from forkdecode.checks import check_float, keep
from forkdecode.engine.spawn import Child
from forkdecode.errors import UnavailableError
from forkdecode.logs import get_logger
from forkdecode.wire.messages import Beat

SLICES = 10
"""Into which the wait for a word is cut. One that lasts far too long, because this process stood still
itself, counts as no more than one."""
LONGEST = 1e6
"""Seconds that may be asked for."""
_LONGEST_BEAT = 1.0
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an engine process may take before it is ended, and started again as after a crash.

    silence: seconds without a word. A thread of its own says one a second whatever a step takes, from the
    moment that the process has begun to load. step: seconds that one step may take, and that the process
    may take to say its first word; long enough for the largest step there is and for what is compiled in
    the first.
    """

    silence: float = 30.0
    step: float = 600.0

    def __post_init__(self) -> None:
        keep(self, "silence", check_float, 0.0, LONGEST, open_low=True)
        keep(self, "step", check_float, 0.0, LONGEST, open_low=True)

    @property
    def beat(self) -> float:
        """Seconds between two words of a process that is well."""
        return min(_LONGEST_BEAT, self.silence / SLICES)


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
