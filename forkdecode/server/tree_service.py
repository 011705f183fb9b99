"""The call of DecodeService that steers a tree session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from forkdecode.errors import ForkdecodeError, InvalidRequestError, invalid
from forkdecode.rpc.convert_tree_commands import CloseCall, OpenCall, ResumeCall, SessionCall, session_call
from forkdecode.rpc.convert_tree_events import tree_event
from forkdecode.rpc.fields import check_known
from forkdecode.rpc.parse import parse
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.server.auth import Caller
from forkdecode.server.guard import A_MOMENT, Context, Guard
from forkdecode.server.record import CallRecord
from forkdecode.server.running import going_down
from forkdecode.server.stream import write_in_time
from forkdecode.server.tree_feed import TreeFeed
from forkdecode.server.tree_host import HostedTree
from forkdecode.server.trees import Trees
from forkdecode.server.workers import LARGE, Workers

T = TypeVar("T")


class TreeService:
    """Reads commands, writes events; the session itself is a HostedTree's."""

    def __init__(self, trees: Trees, guard: Guard, workers: Workers, *, stall_timeout: float) -> None:
        self._trees = trees
        self._guard = guard
        self._workers = workers
        self._stall_timeout = stall_timeout

    async def session(self, commands: AsyncIterator[bytes], context: Context) -> None:
        """Session: until its client closes it or goes away."""
        record = CallRecord("Session")

        async def work(first: bytes, caller: Caller) -> None:
            await context.send_initial_metadata(())
            host, feed = await self._begin(first, caller, record)
            record.is_session, record.request_id = True, host.session.name
            reading = asyncio.ensure_future(self._read(commands, host, feed))
            try:
                await self._write(host, feed, context)
            finally:
                host.detach(feed)
                if not host.is_known:
                    host.end()
                reading.cancel()
                await asyncio.wait([reading])

        await self._guard.serve(commands, context, record, work)

    async def _begin(self, first: bytes, caller: Caller, record: CallRecord) -> tuple[HostedTree, TreeFeed]:
        message, call = await self._parsed(first)
        record.message = message
        if isinstance(call, ForkdecodeError):
            raise call
        if isinstance(call, OpenCall):
            return await self._trees.open(call, caller, len(first))
        if isinstance(call, ResumeCall):
            return self._trees.resume(call, caller)
        raise invalid("action", "is none that begins a session", "open_tree or resume_tree first")

    async def _read(self, commands: AsyncIterator[bytes], host: HostedTree, feed: TreeFeed) -> None:
        """What a client sends. It ends with the call."""
        try:
            # What is refused at once, and the end of a call that asks for no more, would be told before.
            await feed.begun.wait()
            async for data in commands:
                message, call = await self._parsed(data)
                if isinstance(call, CloseCall):
                    host.end()
                    return
                self._carry_out(message, call, host, feed, len(data))
                await host.room()
            # A client that is gone and one that has said all look alike, until gRPC cancels the call of one.
            await asyncio.sleep(A_MOMENT)
            host.no_more(feed)
        except Exception as error:
            feed.end(error)

    def _carry_out(
        self,
        message: pb.TreeCommand,
        call: SessionCall | ForkdecodeError,
        host: HostedTree,
        feed: TreeFeed,
        size: int,
    ) -> None:
        error: ForkdecodeError | None = None
        if isinstance(call, ForkdecodeError):
            error = call
        elif isinstance(call, (OpenCall, ResumeCall, CloseCall)):
            error = invalid("action", "begins a session, and this one has begun", "commands of a session")
        elif self._trees.is_draining:
            error = going_down()
        else:
            error = host.command(feed, call, size)
            if error is None:
                feed.asked[call.command_id] = message
        if error is not None:
            feed.refuse(message, error)

    async def _write(self, host: HostedTree, feed: TreeFeed, context: Context) -> None:
        while True:
            events = await feed.take()
            if events is None:
                return
            asked = feed.refused
            message = (
                tree_event(events, asked)
                if feed.taken < LARGE
                else await self._in_worker(tree_event, events, asked)
            )
            await write_in_time(context, message, self._stall_timeout, feed.name)
            host.is_known = True

    async def _parsed(self, data: bytes) -> tuple[pb.TreeCommand, SessionCall | ForkdecodeError]:
        return _parse(data) if len(data) < LARGE else await self._in_worker(_parse, data)

    async def _in_worker(self, work: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._workers.large, work, *arguments)


def _parse(data: bytes) -> tuple[pb.TreeCommand, SessionCall | ForkdecodeError]:
    """A command, or what is wrong with it. Raises InvalidRequestError for bytes that are no command."""
    try:
        message = pb.TreeCommand.FromString(data)
    except DecodeError:
        message = parse(pb.TreeCommand, data)  # raises, and says where
    try:
        check_known(message)
        return message, session_call(message)
    except InvalidRequestError as error:
        return message, error
