"""Tree sessions of tests, spoken to in the protocol itself."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
import pytest

from forkdecode.errors import ForkdecodeError
from forkdecode.rpc.convert_tree_commands import (
    OpenCall,
    ResumeCall,
    close_message,
    command_message,
    open_message,
    resume_message,
)
from forkdecode.rpc.convert_tree_events import tree_events
from forkdecode.rpc.status import error_of
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.tree_types import Command, OpenTree, Refused, TreeEvent, TreeOpened
from tests.server.servers import Running

T = TypeVar("T")
METHOD = "/forkdecode.rpc.v1.DecodeService/Session"


class RawSession:
    """One call. Messages may be any bytes."""

    def __init__(self, channel: grpc.Channel, metadata: Any = ()) -> None:
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call: Any = channel.stream_stream(METHOD, None, pb.TreeEvent.FromString)
        self.call: Any = call(iter(self._outgoing.get, None), metadata=metadata)
        self._events: list[TreeEvent] = []
        self.messages: list[pb.TreeEvent] = []

    def send(self, message: pb.TreeCommand | bytes) -> None:
        self._outgoing.put(message if isinstance(message, bytes) else message.SerializeToString())

    def command(self, command: Command) -> None:
        self.send(command_message(command))

    def open(self, prompt: Any = "hello", seed: int = 3, **limits: Any) -> TreeOpened:
        self.send(open_message(OpenCall(OpenTree(prompt, seed=seed), limits)))
        return self.await_event(TreeOpened)

    def resume(self, opened: TreeOpened, secret: str | None = None) -> TreeOpened:
        self.send(resume_message(ResumeCall(opened.tree, opened.secret if secret is None else secret)))
        return self.await_event(TreeOpened)

    def half_close(self) -> None:
        self._outgoing.put(None)

    def close(self) -> None:
        self.send(close_message())

    def events(self) -> Iterator[TreeEvent]:
        """Those that come, to the end of the call."""
        while True:
            while self._events:
                yield self._events.pop(0)
            message = next(self.call, None)
            if message is None:
                return
            self.messages.append(message)
            self._events += tree_events(message)

    def await_event(self, kind: type[T]) -> T:
        """The next event of a kind; those before it are dropped. Raises a refusal that was not awaited."""
        for event in self.events():
            if isinstance(event, kind):
                return event
            if isinstance(event, Refused):
                raise event.error
        raise AssertionError(f"the call ended without {kind.__name__}")

    def status(self) -> tuple[grpc.StatusCode, ForkdecodeError]:
        """What the call ends with."""
        with pytest.raises(grpc.RpcError) as caught:
            list(self.events())
        return caught.value.code(), error_of(caught.value)

    def leave(self) -> None:
        """Ends the call as a lost connection does."""
        self.call.cancel()


@contextmanager
def raw(server: Running, metadata: Any = ()) -> Iterator[RawSession]:
    """A call over a channel of its own."""
    with server.channel() as channel:
        session = RawSession(channel, metadata)
        try:
            yield session
        finally:
            session.leave()
            session.half_close()


def in_loop(server: Running, call: Callable[[], T]) -> T:
    """Calls something in the server's loop."""

    async def work() -> T:
        return call()

    found: T = server.begin(work()).result(60)
    return found


def left(server: Running, session: RawSession, count: int = 1) -> None:
    """Leaves, and waits until the server has noticed: until `count` calls of sessions have ended."""
    session.leave()
    server.lines("request", count)
