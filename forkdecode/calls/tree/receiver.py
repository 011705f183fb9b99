"""Who receives a Tree's events, and wakes those who wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from forkdecode.calls.one_process import OneProcess
from forkdecode.calls.tree.link import TreeLink
from forkdecode.calls.tree.view import TreeView
from forkdecode.checks import check_float
from forkdecode.errors import ForkdecodeError
from forkdecode.tree_types import TreeEvent

T = TypeVar("T")


class Receiver:
    """Whichever thread waits first receives for all. changed: held by who reads or changes the view."""

    def __init__(self, link: TreeLink, view: TreeView) -> None:
        self._link = link
        self._process = OneProcess()
        self._view = view
        self.changed = threading.Condition()
        self._receiving = False

    def until(self, done: Callable[[], T], timeout: float | None = None) -> T:
        """Receives events until `done` says so, and returns what it says. Raises what ended the session
        before, and TimeoutError after `timeout` seconds."""
        self._process.check()
        deadline = None if timeout is None else time.monotonic() + max(0.0, check_float("timeout", timeout))
        with self.changed:
            while True:
                if found := done():
                    return found
                if self._view.error is not None:
                    raise self._view.error
                left = None if deadline is None else min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
                if self._receiving:
                    if not self.changed.wait(left) and left is not None:
                        raise TimeoutError(f"not there after {timeout} s")
                else:
                    self._receive(left)

    def _receive(self, timeout: float | None) -> None:
        """Takes one event, as the one that does; others may send meanwhile."""
        self._receiving = True
        self.changed.release()
        event: TreeEvent | ForkdecodeError | None = None
        try:
            event = self._link.receive(timeout)
        except ForkdecodeError as error:
            event = error
        finally:
            self.changed.acquire()
            self._receiving = False
            if isinstance(event, ForkdecodeError):
                self._view.fail(event)
            elif event is not None:
                self._view.apply(event)
            self.changed.notify_all()
