"""A server that does what a test says: for faults that a real one has no switch for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc

from forkdecode import ForkdecodeError
from forkdecode.rpc.status import status_of
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.rpc.v1.decode_pb2_grpc import DecodeServiceServicer, add_DecodeServiceServicer_to_server

Act: TypeAlias = Callable[[Any, "grpc.aio.ServicerContext[Any, Any]"], AsyncIterator[pb.DecodeEvent]]


@dataclass
class Script(DecodeServiceServicer):
    """One act a call, in order; the last one again for all that follow."""

    acts: Sequence[Act]
    address: str = ""
    requests: list[Any] = field(default_factory=list)
    seconds_left: list[float | None] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    arrived: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)
    opens: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.opens.set()

    async def Decode(self, request: Any, context: Any) -> AsyncIterator[pb.DecodeEvent]:  # noqa: N802
        act = self.acts[min(len(self.requests), len(self.acts) - 1)]
        self.requests.append(request)
        self.arrived.set()
        self.seconds_left.append(context.time_remaining())
        self.metadata.append(dict(context.invocation_metadata()))
        try:
            async for event in act(request, context):
                yield event
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def Session(self, commands: Any, context: Any) -> AsyncIterator[pb.TreeEvent]:  # noqa: N802
        """Opens a session, when it `opens`; the act is the call's end, when the first command after that has
        come, unless that closes it."""
        act = self.acts[min(len(self.requests), len(self.acts) - 1)]
        self.requests.append(await anext(commands))
        self.arrived.set()
        await asyncio.to_thread(self.opens.wait)
        yield pb.TreeEvent(changes=[pb.TreeChange(opened=pb.TreeOpened(tree="t", model="m", limits=LIMITS))])
        if (await anext(commands)).HasField("close_tree"):
            self.closed.set()
            return
        async for _ in act(self.requests[-1], context):
            pass

    async def Score(self, request: Any, context: Any) -> Any:  # noqa: N802
        act = self.acts[min(len(self.requests), len(self.acts) - 1)]
        self.requests.append(request)
        try:
            async for _ in act(request, context):
                return pb.ScoreResponse(request_id=request.request_id)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def GetStats(self, request: Any, context: Any) -> Any:  # noqa: N802
        act = self.acts[min(len(self.requests), len(self.acts) - 1)]
        self.requests.append(request)
        async for _ in act(request, context):
            return pb.GetStatsResponse(steps=7)


def fails(error: ForkdecodeError, *, after: Sequence[pb.DecodeEvent] = ()) -> Act:
    """Sends `after`, then the error's status."""

    async def act(request: Any, context: Any) -> AsyncIterator[pb.DecodeEvent]:
        for event in after:
            yield event
        await context.abort(*status_of(error))

    return act


def status(code: grpc.StatusCode, text: str = "as scripted") -> Act:
    """A bare status, as a proxy would send it."""

    async def act(request: Any, context: Any) -> AsyncIterator[pb.DecodeEvent]:
        await context.abort(code, text)
        yield pb.DecodeEvent()

    return act


def sends(*events: pb.DecodeEvent) -> Act:
    """These events, then OK."""

    async def act(request: Any, context: Any) -> AsyncIterator[pb.DecodeEvent]:
        for event in events:
            yield event

    return act


async def hangs(request: Any, context: Any) -> AsyncIterator[pb.DecodeEvent]:
    """One event, and then none until the call is given up."""
    yield STARTED
    await asyncio.Event().wait()


async def silent(request: Any, context: Any) -> AsyncIterator[pb.DecodeEvent]:
    """Nothing at all."""
    await asyncio.Event().wait()
    yield STARTED


LIMITS = pb.TreeLimits(max_nodes=9, max_depth=9, max_tokens=9)
STARTED = pb.DecodeEvent(request_id="r", started=pb.Started(prompt_tokens=3))
FINISHED = pb.DecodeEvent(
    request_id="r",
    finished=pb.Finished(
        candidates=[
            pb.Candidate(index=0, token_ids=[1], text="a", finish_reason=pb.FINISH_REASON_LENGTH, score=-1.0)
        ],
        usage=pb.Usage(generated_tokens=1),
        prompt_token_ids=pb.TokenIds(ids=[5]),
    ),
)


@contextmanager
def scripted(*acts: Act) -> Iterator[Script]:
    """In a thread, on a free port of loopback."""
    script = Script(acts)
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        server = grpc.aio.server()
        add_DecodeServiceServicer_to_server(script, server)  # type: ignore[no-untyped-call]
        script.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        ready.set()
        await asyncio.to_thread(done.wait)
        await server.stop(0)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield script
    finally:
        done.set()
        thread.join()
