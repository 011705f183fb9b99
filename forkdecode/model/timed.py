"""How long the parts of a step take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def timed(timings: dict[str, float], part: str) -> Iterator[None]:
    """Adds the seconds that pass within to the part's."""
    begin = time.perf_counter()
    yield
    timings[part] = timings.get(part, 0.0) + time.perf_counter() - begin
