"""Telling what takes long while it takes long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 10.0
"""Seconds for which nobody wonders: more than what is loaded from caches takes, on slow machines too."""


@contextmanager
def told_if_slow(tell: Callable[[], None], seconds: float = PATIENCE) -> Iterator[None]:
    """Calls `tell` from another thread, once, if what is done within has not ended after so many seconds."""
    timer = threading.Timer(seconds, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
