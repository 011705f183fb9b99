"""A tree session's call to a server, in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeAlias

import grpc

from forkdecode.client.failures import failure_of, unreadable
from forkdecode.client.writing import write
from forkdecode.errors import EngineClosedError, ForkdecodeError, UnavailableError, invalid
from forkdecode.rpc.convert_tree_commands import close_message
from forkdecode.rpc.convert_tree_events import tree_events
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.tree_types import TreeEvent, TreeOpened

Put: TypeAlias = Callable[[TreeEvent | ForkdecodeError], None]
"""Takes a session's events; an error is the last. Must not block."""
CLOSE_SECONDS = 5.0
"""How long a server may take to end a session before its connection is cut."""


class TreeCall:
    """A session that has been opened. What is sent waits here until gRPC takes it."""

    def __init__(self, call: Any, first: list[TreeEvent], put: Put) -> None:
        """first: the events of the call's first message."""
        opened = first[0]
        assert isinstance(opened, TreeOpened), "looked at by who opened"
        self._limit = opened.max_command_bytes
        self._name = opened.tree
        self._call = call
        self._put = put
        self._outgoing: asyncio.Queue[pb.TreeCommand] = asyncio.Queue()
        self._closing = False
        for event in first:
            put(event)
        loop = asyncio.get_running_loop()
        self._writing = loop.create_task(self._write())
        self._reading = loop.create_task(self._read())

    @property
    def ended(self) -> asyncio.Task[None]:
        """Done when nothing more comes."""
        return self._reading

    def check(self, message: pb.TreeCommand) -> None:
        """Raises InvalidRequestError for a command that the server would not take."""
        size = message.ByteSize()
        if self._limit is not None and size > self._limit:
            allowed = f"at most {self._limit} bytes: send it in parts"
            raise invalid(str(message.WhichOneof("action")), f"the command has {size} bytes", allowed)

    def send(self, message: pb.TreeCommand) -> None:
        """In the loop. Of one whose session has ended nothing comes."""
        self._outgoing.put_nowait(message)

    async def close(self) -> None:
        """Ends the session at the server, or at least the call. Idempotent."""
        if not self._closing:
            self._closing = True
            self.send(close_message())
        await asyncio.wait([self._reading], timeout=CLOSE_SECONDS)
        self._call.cancel()
        await asyncio.wait([self._reading])

    async def _write(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # _read tells
            while True:
                await write(self._call, await self._outgoing.get())

    async def _read(self) -> None:
        failure: ForkdecodeError
        try:
            # Not by `async for`: gRPC has one way or the other, and the first message was read like this.
            while isinstance(message := await self._call.read(), pb.TreeEvent):
                for event in tree_events(message):
                    self._put(event)
            failure = (
                unreadable()
                if message is None
                else UnavailableError(f"the server ended the tree session {self._name}")
            )
        except grpc.aio.AioRpcError as error:
            failure = failure_of(error)
        except asyncio.CancelledError:
            failure = EngineClosedError("the call was cancelled")
        except Exception as error:
            failure = unreadable(error)
            failure.__cause__ = error
        finally:
            self._writing.cancel()
            self._call.cancel()
        self._put(EngineClosedError("the tree was closed") if self._closing else failure)
