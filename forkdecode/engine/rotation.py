"""When a step journal moves on to another file."""

from __future__ import annotations

from dataclasses import dataclass

from forkdecode.checks import check_int, keep
from forkdecode.config import MAX_BYTES

MAX_FILES = 10_000
HARD_LIMIT = 2
"""Times its size: what a file takes at most, but for one step's records."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """When a journal moves on to another file, and what becomes of those before it.

    Once a file has `size` bytes the next one begins as soon as the engine has nothing to do: with empty
    caches, so that every file can be replayed by itself. A file of HARD_LIMIT times that size takes no more,
    and what happens until the engine has nothing to do is not recorded. keep: files before the present one
    that are kept: FILE.1 is the newest.
    """

    size: int
    keep: int = 4

    def __post_init__(self) -> None:
        keep(self, "size", check_int, 1, MAX_BYTES)
        keep(self, "keep", check_int, 0, MAX_FILES)
