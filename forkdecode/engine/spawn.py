"""An engine process as its parent sees it: started, spoken to, and reaped."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from typing import Any

from forkdecode.wire.frames import FrameReader, Outbox
from forkdecode.wire.messages import Start
from forkdecode.wire.records import CODEC

PROGRAM = "forkdecode.engine.process"
UNSENT_BYTES = 2**28
"""Of requests that the process has not taken, new ones counted. It takes them whatever it computes."""


class Child:
    """One process from its start to its end. send() may be called from any thread, receive() from one.

    Raises OSError when no process can be started, RuntimeError when no thread can be.
    """

    def __init__(self, start: Start) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _popen(theirs.fileno())
        except BaseException:
            ours.close()
            raise
        self._sock = ours
        self._reader = FrameReader(ours, CODEC.schema)
        try:
            self._outbox = Outbox(ours, CODEC.schema, UNSENT_BYTES)
        except BaseException:
            self._process.kill()
            self._process.wait()
            ours.close()
            raise
        self.send(start)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: object) -> None:
        """Never waits."""
        self.put(CODEC.encode(message))

    def put(self, message: bytes) -> None:
        """Sends a message that is encoded already."""
        self._outbox.put(message)

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more may wait to be sent. From any thread."""
        return self._outbox.has_room(size)

    def receive(self) -> Any:
        """The next message; None when the process has hung up. Raises ValueError for bytes that are no
        message of ours."""
        data = self._reader.read()
        return None if data is None else CODEC.decode(data)

    def has_said_more(self) -> bool:
        """Whether something waits for receive(). From any thread, before end()."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def kill(self) -> None:
        """Ends the process at once, a stopped one too; receive() then returns None. From any thread."""
        self._process.kill()

    def hang_up(self) -> None:
        """Tells the process to end; receive() then returns None."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def end(self, grace: float) -> str:
        """Hangs up, gives the process `grace` seconds to end, kills it then, and cleans up after it.
        Returns how it ended, in words."""
        self.hang_up()
        try:
            status = self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._outbox.close(0)
        self._reader.close()
        self._sock.close()
        return f"exit status {status}" if status >= 0 else f"killed by {_signal_name(-status)}"


def _popen(descriptor: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", PROGRAM, str(descriptor)]
    # The same modules as here, however they came to be found.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,  # what libraries print is no output of ours
        pass_fds=(descriptor,),
        env=environment,
        process_group=0,  # a terminal's Ctrl-C is for the parent
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
