"""What Tree and AsyncTree hold of a session by a server."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from typing import Any

from forkdecode.client.loop_thread import LoopThread
from forkdecode.client.transport import Transport
from forkdecode.client.tree_call import CLOSE_SECONDS, TreeCall
from forkdecode.errors import EngineClosedError, ForkdecodeError
from forkdecode.rpc.convert_tree_commands import command_message
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.tree_types import Command, TreeEvent


class RemoteLink:
    """A TreeLink whose call runs in a client's loop. It keeps the client's connection, `owner`."""

    def __init__(
        self, owner: Any, loop: LoopThread, transport: Transport, begin: pb.TreeCommand, timeout: float | None
    ) -> None:
        """Opens or resumes a session. Raises what the server says to that."""
        self._owner = owner
        self._loop = loop
        self._inbox: queue.SimpleQueue[TreeEvent | ForkdecodeError] = queue.SimpleQueue()
        self._closed = False
        self._call: TreeCall = loop.call(lambda: transport.tree(begin, self._inbox.put, timeout))

    def send(self, command: Command) -> None:
        if self._closed:
            raise _closed()
        message = command_message(command)
        self._call.check(message)
        self._loop.post(lambda: self._call.send(message))

    def receive(self, timeout: float | None = None) -> TreeEvent:
        try:
            item = self._inbox.get(timeout=None if timeout is None else max(0.0, timeout))
        except queue.Empty:
            raise TimeoutError(f"no event after {timeout} s") from None
        if isinstance(item, ForkdecodeError):
            self._inbox.put(item)  # for whoever asks again
            raise item
        return item

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(ForkdecodeError):  # the client was closed, and has ended it
            self._loop.run(self._call.close, CLOSE_SECONDS + 1)


class AsyncRemoteLink:
    """An AsyncTreeLink in the loop of an AsyncClient."""

    def __init__(self) -> None:
        """Use open()."""
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[TreeEvent | ForkdecodeError] = asyncio.Queue()
        self._call: TreeCall | None = None
        self._owner: Any = None
        self._closed = False

    @classmethod
    async def open(
        cls, owner: Any, transport: Transport, begin: pb.TreeCommand, timeout: float | None
    ) -> AsyncRemoteLink:
        """Opens or resumes a session. Raises what the server says to that."""
        link = cls()
        link._owner = owner
        link._call = await transport.tree(begin, link._inbox.put_nowait, timeout)
        return link

    async def send(self, command: Command) -> None:
        if self._closed:
            raise _closed()
        message = command_message(command)
        self._live.check(message)
        self._live.send(message)

    async def receive(self) -> TreeEvent:
        item = await self._inbox.get()
        if isinstance(item, ForkdecodeError):
            self._inbox.put_nowait(item)
            raise item
        return item

    async def close(self) -> None:
        self._closed = True
        await self._live.close()

    def abandon(self) -> None:
        self._closed = True
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._live.close()))

    @property
    def _live(self) -> TreeCall:
        assert self._call is not None, "the link has been opened"
        return self._call


def _closed() -> EngineClosedError:
    return EngineClosedError("the tree was closed")
