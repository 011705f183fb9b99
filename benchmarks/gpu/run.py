"""Leads gpu_check's parts: each in a process that may fail, hang or die without costing the others anything.

The standard library alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.cases import CEILINGS, Part
from benchmarks.gpu.packages import missing

START_SECONDS = 180.0
"""For a process to import what it needs."""
LAST_SECONDS = 10.0
"""From the last word of a process to its end."""
LIMITS = ("bandwidth", "flops")


class LostError(Exception):
    """A process that does not answer any more, and why."""


class Worker:
    """A process that runs parts, one after another."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(environment),
            process_group=0,  # so that its own processes end with it
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def hear(self, seconds: float) -> dict[str, Any]:
        """The next line that it says. Raises LostError."""
        try:
            line = self._lines.get(timeout=max(seconds, 0.0))
        except queue.Empty:
            raise LostError(f"no answer after {seconds:.3g} s") from None
        if line is None:
            raise LostError(f"its process ended with status {self._status()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _status(self) -> int | None:
        """None: it says nothing any more, but is still there."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(LAST_SECONDS)
        return None

    def ask(self, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Its answer. Raises LostError."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, and hear() says how
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        return self.hear(seconds)

    def end(self) -> None:
        """With all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


@dataclass
class Workers:
    """Processes for parts. alone: one for each part; the next one imports while a part runs that is not to
    be quiet. Otherwise one runs on until it is lost."""

    command: Sequence[str]
    environment: Mapping[str, str]
    alone: bool
    _ready: Worker | None = None
    _next: Worker | None = None

    def take(self, seconds: float, ahead: bool) -> Worker:
        """One that is ready. ahead: another will be wanted, and may import by now. Raises LostError."""
        if self._ready is None:
            self._ready, self._next = self._next or self._start(), None
            self._ready.hear(min(seconds, START_SECONDS))
        if self.alone and ahead and self._next is None:
            self._next = self._start()
        return self._ready

    def done(self, lost: bool) -> None:
        """A part has ended. lost: and so has its process."""
        if self._ready is not None and (lost or self.alone):
            self._ready.end()
            self._ready = None

    def end(self) -> None:
        """All of them."""
        for worker in (self._ready, self._next):
            if worker is not None:
                worker.end()
        self._ready = self._next = None

    def _start(self) -> Worker:
        return Worker(self.command, self.environment)


def results(parts: Sequence[Part], workers: Workers, seconds: float) -> Iterator[tuple[Part, dict[str, Any]]]:
    """Each part and what it found, as soon as it has ended. A part that fails, takes longer than its time or
    ends its process has an "error"; what is not begun within `seconds`, or needs a package that is not there,
    is left out, and says so."""
    ends = time.monotonic() + seconds
    limits: dict[str, float] = {}
    try:
        for i, part in enumerate(parts):
            found = _result(part, workers, limits, ends, more=i + 1 < len(parts))
            if part.name == CEILINGS:
                limits = {name: found[name] for name in LIMITS if name in found}
            yield part, found
    finally:
        workers.end()


def _result(
    part: Part, workers: Workers, limits: Mapping[str, float], ends: float, *, more: bool
) -> dict[str, Any]:
    lacking = missing(part)
    if lacking:
        return {"ok": False, "error": f"left out: {', '.join(lacking)} not installed"}
    if time.monotonic() >= ends:
        return {"ok": False, "error": "left out: the time was up"}
    lost = False
    try:
        worker = workers.take(ends - time.monotonic(), ahead=more and not part.quiet)
        question = {"part": part.name, "limits": limits}
        return worker.ask(question, min(part.seconds, ends - time.monotonic()))
    except LostError as error:
        lost = True
        return {"ok": False, "error": str(error)}
    finally:
        workers.done(lost)
