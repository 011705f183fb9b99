"""The file of a step journal: records, each with its length and checksums, appended one after the other.

    magic (8 bytes), format version (u32), then records
    record: length n (u32), crc32 of the payload (u32), crc32 of these 8 bytes (u32), payload (n bytes)

All numbers are little-endian. A process that dies leaves a last record unfinished at most; a reader
takes what is whole. Damage anywhere else is told apart from that by the checksums.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from forkdecode.errors import InvalidRequestError, invalid

MAGIC = b"FDJOURN\n"
FORMAT = 1
_START = struct.Struct("<8sI")
_NEW = _START.pack(MAGIC, FORMAT)
_HEAD = struct.Struct("<III")
_ALLOWED = f"a step journal of format {FORMAT}"


@dataclass(frozen=True, slots=True)
class Damage:
    """Where a file stops being readable. offset: in bytes. unread: bytes from there to its end."""

    record: int
    offset: int
    unread: int
    cut_off: bool
    """Whether it is only the last record that is not whole, as after a crash."""

    def __str__(self) -> str:
        if self.cut_off:
            return f"the last {self.unread:,} bytes are no whole record: the writer was cut off"
        return f"record {self.record} at byte {self.offset:,} is damaged; {self.unread:,} bytes can't be read"


def frame(payload: bytes) -> bytes:
    """A record as it stands in the file."""
    lengths = struct.pack("<II", len(payload), zlib.crc32(payload))
    return lengths + struct.pack("<I", zlib.crc32(lengths)) + payload


class JournalReader:
    """Iterates over a file's payloads; afterwards `damage` says whether it was read to its end.

    Raises InvalidRequestError for a file of another kind or format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: Damage | None = None
        self.end = _START.size
        """In bytes, after the last whole record read."""

    def __iter__(self) -> Iterator[bytes]:
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            _check_start(file.read(_START.size))
            yield from self._records(file, size)

    def _records(self, file: BinaryIO, size: int) -> Iterator[bytes]:
        count = 0
        while self.end < size:
            count += 1
            head = file.read(_HEAD.size)
            found = _length(head, size - self.end)
            payload = file.read(found.length) if found.whole else b""
            if not found.whole or zlib.crc32(payload) != found.checksum:
                self.damage = Damage(count, self.end, size - self.end, found.cut_off)
                return
            self.end += _HEAD.size + found.length
            yield payload


@dataclass(frozen=True, slots=True)
class _Head:
    """What stands before a payload. cut_off: the file ends before the payload does."""

    length: int
    checksum: int
    whole: bool
    cut_off: bool


def _length(head: bytes, left: int) -> _Head:
    """left: bytes from this head to the end of the file."""
    if len(head) < _HEAD.size:
        return _Head(0, 0, whole=False, cut_off=True)
    length, checksum, own = _HEAD.unpack(head)
    if zlib.crc32(head[:8]) != own:
        return _Head(0, 0, whole=False, cut_off=False)
    cut_off = _HEAD.size + length > left
    return _Head(length, checksum, whole=not cut_off, cut_off=cut_off)


def open_to_append(path: Path) -> BinaryIO:
    """The file, new or after its last whole record, locked against a second writer.

    Raises InvalidRequestError for a file that is no journal, that is damaged otherwise than by a
    writer's death, or that another process writes; OSError for one that can't be opened.
    """
    file = open(path, "a+b", buffering=0)  # noqa: SIM115 - the caller closes it
    try:
        _lock(file)
        if _is_begun(file):
            _drop_unfinished(path, file)
        else:
            file.truncate(0)
            _write_start(file)
    except BaseException:
        file.close()
        raise
    return file


def make_room(path: Path, keep: int) -> None:
    """Moves `path` to `path.1`, that to `path.2` and so on, and forgets what would be beyond `path.keep`.

    Whoever writes `path` has closed it. Raises OSError.
    """
    names = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, keep + 1))]
    names[-1].unlink(missing_ok=True)
    for old, new in reversed(list(itertools.pairwise(names))):
        if old.exists():
            old.rename(new)


def _lock(file: BinaryIO) -> None:
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise invalid("journal", "is written by another process", "a file of its own") from None


def _is_begun(file: BinaryIO) -> bool:
    """Whether there is more than a beginning that its writer was cut off in."""
    file.seek(0)
    start = file.read(_START.size)
    return len(start) == _START.size or not _NEW.startswith(start)


def _write_start(file: BinaryIO) -> None:
    if file.write(_NEW) != len(_NEW):  # a raw write may be a short one
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _drop_unfinished(path: Path, file: BinaryIO) -> None:
    """Goes from head to head, without reading what is between: an engine must be back soon."""
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    _check_start(file.read(_START.size))
    count, end = 0, _START.size
    while end < size:
        count += 1
        file.seek(end)
        found = _length(file.read(_HEAD.size), size - end)
        if found.cut_off:
            file.truncate(end)
            return
        if not found.whole:
            damage = Damage(count, end, size - end, cut_off=False)
            raise invalid("journal", f"{str(path)!r}: {damage}", "a whole journal, or a new file")
        end += _HEAD.size + found.length


def _check_start(start: bytes) -> None:
    magic, version = _START.unpack(start) if len(start) == _START.size else (b"", 0)
    if magic != MAGIC:
        raise invalid("journal", "this file is no step journal", _ALLOWED)
    if version != FORMAT:
        raise wrong_version(f"it is of format {version}")


def wrong_version(problem: str) -> InvalidRequestError:
    """The error of a journal that this version can't read."""
    return invalid("journal", problem, f"{_ALLOWED}, by the version of forkdecode that wrote it")
