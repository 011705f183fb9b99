"""Frames over a stream socket: version, length and schema ahead of each message's bytes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque

VERSION = 1
MAX_FRAME = 2**30
"""Bytes of a message."""
_HEADER = struct.Struct("<2sBxI8s")
_MAGIC = b"fd"


def framed(payload: bytes, schema: bytes) -> bytes:
    """A frame. schema: the 8 bytes of Codec.schema. Raises ValueError for a payload that is too long."""
    if len(payload) > MAX_FRAME:
        raise ValueError(f"a message of {len(payload):,} bytes; at most {MAX_FRAME:,}")
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

    When more than `limit` bytes wait already, the other side has stopped reading: the connection is
    given up, which both sides see as a hang-up. Sending over a connection that is gone does nothing; who
    reads it learns of the end.
    """

    def __init__(self, sock: socket.socket, schema: bytes, limit: int) -> None:
        self._sock = sock
        self._schema = schema
        self._limit = limit
        self._waiting: deque[memoryview] = deque()
        self._bytes = 0
        self._broken = False
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="forkdecode-outbox", daemon=True)
        self._thread.start()

    def put(self, payload: bytes) -> None:
        """Sends a message. Raises ValueError for one that is too long."""
        frame = memoryview(framed(payload, self._schema))
        with self._changed:
            if self._broken or self._closing:
                return
            if not self._waiting:
                frame = frame[self._send_now(frame) :]
            if not frame or self._broken:
                return
            if self._bytes > self._limit:
                self._break()
                return
            self._waiting.append(frame)
            self._bytes += len(frame)
            self._changed.notify()

    def close(self, timeout: float) -> None:
        """Sends what waits, for `timeout` seconds at most, and ends the thread. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
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
        while (frame := self._next()) is not None:
            try:
                self._sock.sendall(frame)
            except OSError:
                with self._changed:
                    self._break()
                return
            with self._changed:
                if not self._broken:
                    self._bytes -= len(self._waiting.popleft())

    def _next(self) -> memoryview | None:
        """The frame to send next: it stays in the queue until it is sent, so that none overtakes it."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing or self._broken)
            return None if self._broken or not self._waiting else self._waiting[0]

    def _break(self) -> None:
        self._broken = True
        self._waiting.clear()
        self._bytes = 0
        self._changed.notify()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
