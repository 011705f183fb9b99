"""Writes a journal's records in a thread of its own.

No step waits for the disk, unless PENDING_BYTES are waiting for it: then steps do wait, and no record is
lost. Whatever was handed over survives the process's death once written, but not the machine's: nothing is
fsynced.
"""

from __future__ import annotations

import threading
from typing import BinaryIO

from forkdecode.logs import get_logger

PENDING_BYTES = 64 * 2**20
"""Of records that wait for the disk before a step does."""
_log = get_logger(__name__)


class JournalWriter:
    """Appends to a file in a thread of its own."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        self._limit = limit
        self._chunks: list[bytes] = []
        self._pending = 0
        self._changed = threading.Condition()
        self._closing = False
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="forkdecode-journal", daemon=True)
        self._thread.start()

    def put(self, chunk: bytes) -> None:
        """Hands over one record; waits while more than the limit is pending."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending < self._limit or self._failed)
            if self._failed:
                return
            self._chunks.append(chunk)
            self._pending += len(chunk)
            self._changed.notify_all()

    def close(self) -> None:
        """Writes what is pending and closes the file. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._file.close()

    def _run(self) -> None:
        try:
            while chunks := self._take():
                data = memoryview(b"".join(chunks))
                size = len(data)
                while data:  # a raw write may be a short one
                    data = data[self._file.write(data) :]
                with self._changed:
                    self._pending -= size
                    self._changed.notify_all()
        except OSError:
            _log.exception("journal_ended", record="write")
            with self._changed:
                self._failed = True
                self._chunks.clear()
                self._changed.notify_all()

    def _take(self) -> list[bytes]:
        """What is pending; nothing once all is written and the writer closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._chunks or self._closing)
            chunks, self._chunks = self._chunks, []
            return chunks
