"""Whether the file at a path is the one that was read."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

FileStamp: TypeAlias = tuple[int, int, int, int]
"""Device, inode, time of the last change in nanoseconds, bytes."""


def file_stamp(path: Path) -> FileStamp | None:
    """Tells one file from another in its place; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
