"""When a step journal continues in another file."""

from __future__ import annotations

from dataclasses import dataclass

from forkdecode.checks import check_int, keep
from forkdecode.config import MAX_BYTES

MAX_FILES = 10_000
HARD_LIMIT = 2
"""The most that a file may take, as a multiple of its size, apart from one step's records."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """When a journal continues in another file, and how many older files are kept.

    Once a file has `size` bytes, the next one begins as soon as the engine is idle: with empty caches, so
    that every file can be replayed by itself. At HARD_LIMIT times that size, nothing more is recorded until
    the engine is idle. keep: older files kept in addition to the current one; FILE.1 is the newest of them.
    """

    size: int
    keep: int = 4

    def __post_init__(self) -> None:
        keep(self, "size", check_int, 1, MAX_BYTES)
        keep(self, "keep", check_int, 0, MAX_FILES)
