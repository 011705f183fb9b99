"""Tree sessions of this process: commands are carried out where they are sent, an engine's events where
they are received."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import NoReturn, TypeAlias

from forkdecode.errors import EngineClosedError, ForkdecodeError
from forkdecode.tree.running import Emit
from forkdecode.tree.session import EngineItem, Post, TreeSession
from forkdecode.tree_types import Command, TreeEvent

OpenSession: TypeAlias = Callable[[Emit, Post], TreeSession]
"""Makes a session that emits and posts there. Raises InvalidRequestError."""


class LocalLink:
    """A TreeLink to a session in this process."""

    def __init__(self, open_session: OpenSession) -> None:
        self._inbox: queue.SimpleQueue[EngineItem | TreeEvent | ForkdecodeError] = queue.SimpleQueue()
        # Whoever collects garbage, maybe in the middle of a command, may have to close a tree.
        self._lock = threading.RLock()
        self._session = open_session(self._inbox.put, self._inbox.put)
        self._closed = False
        self._inbox.put(self._session.snapshot())

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a tree cannot be copied or sent to another process: export its nodes, and import them there"
        )

    def send(self, command: Command) -> None:
        with self._lock:
            if self._closed:
                raise _closed()
            self._session.command(command)

    def receive(self, timeout: float | None = None) -> TreeEvent:
        while True:
            try:
                item = self._inbox.get(timeout=None if timeout is None else max(0.0, timeout))
            except queue.Empty:
                raise TimeoutError(f"no event after {timeout} s") from None
            if isinstance(item, ForkdecodeError):
                self._inbox.put(item)  # for whoever asks again
                raise item
            if not isinstance(item, EngineItem):
                return item
            with self._lock:
                self._session.take(item)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._session.close()
                self._inbox.put(_closed())


class AsyncLocalLink:
    """An AsyncTreeLink to a session in this process. Commands are carried out in worker threads, for they
    tokenize."""

    def __init__(self) -> None:
        """Use open()."""
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[EngineItem | TreeEvent | ForkdecodeError] = asyncio.Queue()
        self._turn = asyncio.Lock()
        self._busy = threading.RLock()
        self._closed = False
        self._session: TreeSession | None = None

    @classmethod
    async def open(cls, open_session: OpenSession) -> AsyncLocalLink:
        """Raises InvalidRequestError for a wrong prompt."""
        link = cls()
        link._session = await asyncio.to_thread(open_session, link._put, link._put)
        link._put(link._session.snapshot())
        return link

    async def send(self, command: Command) -> None:
        async with self._turn:
            await asyncio.to_thread(self._command, command)

    async def receive(self) -> TreeEvent:
        while True:
            item = await self._inbox.get()
            if isinstance(item, ForkdecodeError):
                self._inbox.put_nowait(item)
                raise item
            if not isinstance(item, EngineItem):
                return item
            async with self._turn:
                with self._busy:
                    self._live.take(item)

    async def close(self) -> None:
        await asyncio.to_thread(self.abandon)

    def abandon(self) -> None:
        with self._busy:
            if not self._closed:
                self._closed = True
                self._live.close()
                self._put(_closed())

    def _command(self, command: Command) -> None:
        with self._busy:
            if self._closed:
                raise _closed()
            self._live.command(command)

    @property
    def _live(self) -> TreeSession:
        assert self._session is not None, "the link has been opened"
        return self._session

    def _put(self, item: EngineItem | TreeEvent | ForkdecodeError) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody reads any more
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, item)


def _closed() -> EngineClosedError:
    return EngineClosedError("the tree was closed")
