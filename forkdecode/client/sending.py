"""Requests of threads on their way to a server, by a loop of their client's own."""

from __future__ import annotations

import asyncio
import weakref

from forkdecode.client.loop_thread import LoopThread
from forkdecode.client.settings import Settings
from forkdecode.client.siblings import Siblings
from forkdecode.client.transport import Put, Transport
from forkdecode.client.writer import Letter
from forkdecode.errors import ForkdecodeError


class Link:
    """A transport in a loop of its own, both ended when nobody holds this any more."""

    def __init__(self, settings: Settings) -> None:
        self.transport = Transport(settings)
        self.loop = LoopThread()
        self.close = weakref.finalize(self, self.loop.stop, self.transport.close)


class Sending:
    """One request on its way. Its handle holds it, and so the link, until it ends."""

    def __init__(self, link: Link, letter: Letter, timeout: float | None, siblings: Siblings | None) -> None:
        self._link = link
        self._letter = letter
        self._timeout = timeout
        self._siblings = siblings
        self._task: asyncio.Task[None] | None = None

    def begin(self, put: Put) -> None:
        """In the loop."""
        try:
            self._task = self._link.transport.start(self._letter, put, self._timeout, self._siblings)
        except ForkdecodeError as error:
            put(error)

    def cancel(self) -> None:
        """From any thread, after begin was posted."""
        try:
            self._link.loop.post(self._cancel)
        except ForkdecodeError:  # closed: it has ended with that
            return

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
