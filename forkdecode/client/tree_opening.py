"""A tree session's call until its first event has come, or nobody waits for that any more."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc

from forkdecode.client.tree_call import CLOSE_SECONDS
from forkdecode.client.writing import write
from forkdecode.rpc.convert_tree_commands import close_message
from forkdecode.rpc.v1 import decode_pb2 as pb


class TreeOpening:
    """One attempt. begin: opens or resumes a session."""

    def __init__(self, call: Any, begin: pb.TreeCommand) -> None:
        self.call = call
        self._begin = begin
        self._first: asyncio.Task[Any] | None = None

    async def first(self) -> Any:
        """The call's first message, if it has one. Who stops waiting must leave()."""
        await self.call.wait_for_connection()
        self._first = asyncio.get_running_loop().create_task(self._exchange())
        return await asyncio.shield(self._first)  # gRPC would cancel the call

    async def leave(self) -> None:
        """Ends the call. What it has opened at the server, and nobody will hear of, is closed: a call that is
        cut off might leave it behind."""
        try:
            if self._first is not None and self._begin.HasField("open_tree"):
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
                    async with asyncio.timeout(CLOSE_SECONDS):
                        await self._close(self._first)
        finally:
            self.call.cancel()  # no effect on one that has ended

    async def _exchange(self) -> Any:
        await write(self.call, self._begin)
        return await self.call.read()

    async def _close(self, first: asyncio.Task[Any]) -> None:
        await write(self.call, close_message())
        message = await first
        while isinstance(message, pb.TreeEvent):
            message = await self.call.read()
