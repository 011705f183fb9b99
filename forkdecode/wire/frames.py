"""Frames over a stream socket: version, length and schema ahead of each message's bytes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from functools import partial

VERSION = 1
MAX_FRAME = 2**30
"""Bytes of a message."""
PATIENCE = 120.0
"""Seconds after which a reader that takes nothing, while too much waits for it, is given up."""
_PIECE = 2**20
"""Bytes of a long frame that are sent at a time: what was taken of it shows that its reader lives."""
_HEADER = struct.Struct("<2sBxI8s")
_MAGIC = b"fd"


class TooLongError(ValueError):
    """A message that no frame can hold."""


def framed(payload: bytes, schema: bytes) -> bytes:
    """A frame. schema: the 8 bytes of Codec.schema. Raises TooLongError."""
    if len(payload) > MAX_FRAME:
        raise TooLongError(f"a message of {len(payload):,} bytes; at most {MAX_FRAME:,}")
    return _HEADER.pack(_MAGIC, VERSION, len(payload), schema) + payload


class FrameReader:
    """Reads frames off a blocking socket, in one thread."""

    def __init__(self, sock: socket.socket, schema: bytes) -> None:
        self._file = sock.makefile("rb", buffering=2**18)
        self._schema = schema

    def read(self) -> bytes | None:
        """The next message's bytes; None when the other side has hung up, within a frame or after one.

        Raises ValueError for a frame of another version, and for what is no frame.
        """
        try:
            header = self._file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return None
            size = self._size(header)
            payload = self._file.read(size)
        except (ConnectionError, OSError):
            return None
        return payload if len(payload) == size else None

    def close(self) -> None:
        """Gives the socket's descriptor up."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _size(self, header: bytes) -> int:
        magic, version, size, schema = _HEADER.unpack(header)
        if magic != _MAGIC or size > MAX_FRAME:
            raise ValueError("what came is no frame")
        if version != VERSION or schema != self._schema:
            raise ValueError(
                "the other side is another version of forkdecode; was it upgraded while this one ran?"
            )
        return int(size)


class Outbox:
    """Sends frames without ever making the sender wait: what the socket does not take at once, a
    thread sends on.

    Who sends more than the other side takes calls room(), or asks has_room(): what waits is bounded by that
    alone. Sending over a connection that is gone does nothing; who reads it
    learns of the end.
    """

    def __init__(self, sock: socket.socket, schema: bytes, limit: int, patience: float = PATIENCE) -> None:
        """limit: bytes that may wait before it is full. patience: seconds for which room() waits for a reader
        that takes nothing."""
        self._sock = sock
        self._schema = schema
        self._limit = limit
        self._patience = patience
        self._waiting: deque[memoryview] = deque()
        self._bytes = 0
        self._taken = 0
        self._broken = False
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="forkdecode-outbox", daemon=True)
        self._thread.start()

    def put(self, payload: bytes) -> None:
        """Sends a message. Raises TooLongError."""
        frame = memoryview(framed(payload, self._schema))
        with self._changed:
            if self._broken or self._closing:
                return
            if not self._waiting:
                frame = frame[self._send_now(frame) :]
            if not frame or self._broken:
                return
            self._waiting.append(frame)
            self._bytes += len(frame)
            self._changed.notify_all()

    @property
    def is_full(self) -> bool:
        """Whether more than the limit waits. From any thread."""
        return self._bytes > self._limit

    def has_room(self, size: int) -> bool:
        """Whether no more than the limit would wait with so many bytes more. From any thread."""
        return self._bytes + size <= self._limit

    def room(self) -> None:
        """Waits until it is not full. A reader that has taken nothing for `patience` seconds meanwhile has
        stopped reading: the connection is given up, which both sides see as a hang-up."""
        with self._changed:
            while self.is_full and not self._broken:
                before = self._taken
                self._changed.wait_for(partial(self._goes_on, before), self._patience)
                if self._taken == before:
                    self._break()

    def _goes_on(self, before: int) -> bool:
        return self._taken > before or self._broken

    def close(self, timeout: float) -> None:
        """Sends what waits, for `timeout` seconds at most, and ends the thread. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        with self._changed:
            if self._thread.is_alive():
                self._break()
        self._thread.join()

    def _send_now(self, frame: memoryview) -> int:
        try:
            return self._sock.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            self._break()
            return 0

    def _run(self) -> None:
        while (piece := self._next()) is not None:
            try:
                self._sock.sendall(piece)
            except OSError:
                with self._changed:
                    self._break()
                return
            with self._changed:
                if not self._broken:
                    self._sent(len(piece))

    def _next(self) -> memoryview | None:
        """What to send next, of the first frame: it stays in the queue until it is sent, so that none
        overtakes it."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing or self._broken)
            return None if self._broken or not self._waiting else self._waiting[0][:_PIECE]

    def _sent(self, size: int) -> None:
        self._bytes -= size
        self._taken += size
        first = self._waiting[0][size:]
        if first:
            self._waiting[0] = first
        else:
            self._waiting.popleft()
        self._changed.notify_all()

    def _break(self) -> None:
        self._broken = True
        self._waiting.clear()
        self._bytes = 0
        self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
