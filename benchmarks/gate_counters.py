"""How much Python a piece of work runs, counted and not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any


@dataclass(slots=True)
class PythonWork:
    """calls: of functions of the package. lines: of them that were executed."""

    calls: int = 0
    lines: int = 0


def count_calls(work: Callable[[], Any], folder: Path) -> int:
    """Calls of functions written below `folder` while `work` runs in this thread.

    Comprehensions and generator expressions are not counted: from Python 3.12 on the first have no
    frame of their own.
    """
    found, below = PythonWork(), _Below(folder)

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and below(frame) and not frame.f_code.co_name.startswith("<"):
            found.calls += 1

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(before)
    return found.calls


def count_lines(work: Callable[[], Any], folder: Path) -> int:
    """Lines of functions written below `folder` that are executed while `work` runs in this thread: a
    loop counts each time round. Versions of Python differ in it by some per cent."""
    found, below = PythonWork(), _Below(folder)

    def on_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            found.lines += 1
        return on_line

    def on_call(frame: FrameType, event: str, _: Any) -> Any:
        return on_line if below(frame) else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        work()
    finally:
        sys.settrace(before)
    return found.lines


class _Below:
    """Whether a frame's code was written below a folder; remembered by file."""

    def __init__(self, folder: Path) -> None:
        self._prefix = f"{folder}/"
        self._known: dict[str, bool] = {}

    def __call__(self, frame: FrameType) -> bool:
        name = frame.f_code.co_filename
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = name.startswith(self._prefix)
        return known
