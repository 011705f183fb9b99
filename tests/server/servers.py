"""Real servers for tests, in this process, before an engine of the tiny Llama.

`running_server()` runs one in a thread with a loop of its own, for blocking clients; `serving()` in the
loop of the test, for asyncio clients.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from forkdecode import LLM
from forkdecode.engine.log import json_logger
from forkdecode.engine.start import RunningEngine
from forkdecode.server.app import Server
from forkdecode.server.backend import Backend
from forkdecode.server.metrics import Metrics
from forkdecode.server.settings import ServerSettings
from tests.llm.models import TOKENIZER, tiny_llama

LOOPBACK = "127.0.0.1:0"


class Log(io.StringIO):
    """A server's log, for readers of other threads."""

    def __init__(self) -> None:
        super().__init__()
        self._grown = threading.Condition()

    def write(self, text: str) -> int:
        with self._grown:
            self._grown.notify_all()
            return super().write(text)

    def lines(self, event: str, count: int = 0) -> list[dict[str, Any]]:
        """The lines of one kind, once there are at least `count`."""

        def found() -> list[dict[str, Any]]:
            every = [json.loads(line) for line in self.getvalue().splitlines()]
            return [line for line in every if line["event"] == event]

        with self._grown:
            assert self._grown.wait_for(lambda: len(found()) >= count, 60), self.getvalue()
            return found()


@dataclass
class Running:
    """A server, where it listens, and its log."""

    address: str
    server: Server
    log: Log
    loop: asyncio.AbstractEventLoop = field(repr=False)

    def lines(self, event: str, count: int = 0) -> list[dict[str, Any]]:
        """The log's lines of one kind, once there are at least `count`."""
        return self.log.lines(event, count)

    def ended(self, request_id: str) -> dict[str, Any]:
        """The log's line of a request's end, once it is there: it comes after the status is sent."""
        for count in itertools.count(1):
            found = [line for line in self.lines("request", count) if line["request_id"] == request_id]
            if found:
                return found[0]
        raise AssertionError("unreachable")

    def channel(self, **options: int) -> grpc.Channel:
        """A blocking channel; options as gRPC names them without "grpc."."""
        return grpc.insecure_channel(self.address, options=[(f"grpc.{k}", v) for k, v in options.items()])

    def begin(self, work: Any) -> Future[Any]:
        """Runs a coroutine in the server's loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)


@contextmanager
def tiny_llm(model: Any = None, **settings: Any) -> Iterator[LLM]:
    """An engine to serve: the tiny Llama, in 4096 blocks of 4 tokens."""
    defaults = {"tokenizer": TOKENIZER, "num_blocks": 4096, "threads": 1, "block_size": 4}
    with LLM(tiny_llama() if model is None else model, **{**defaults, **settings}) as llm:
        yield llm


def backend_of(llm: LLM) -> Backend:
    """What a server needs of an LLM's engine."""
    running: RunningEngine = llm._session.engine
    return Backend(
        running.thread, running.info, running.capacity, running.tokenizer, catalogues=llm.catalogues
    )


@asynccontextmanager
async def serving(
    backend: Backend | LLM,
    *,
    metrics: Metrics | None = None,
    clock: Callable[[], float] = time.monotonic,
    **settings: Any,
) -> AsyncIterator[Running]:
    """A server in the running loop, on a free port of loopback unless `listen` says otherwise."""
    log = Log()
    found = backend_of(backend) if isinstance(backend, LLM) else backend
    server = Server(
        ServerSettings(**{"listen": LOOPBACK, **settings}), json_logger(log), metrics, clock=clock
    )
    address = server.bind()
    await server.open()
    await server.start(found)
    try:
        yield Running(str(address), server, log, asyncio.get_running_loop())
    finally:
        await server.stop()


@contextmanager
def running_server(
    backend: Backend | LLM,
    *,
    metrics: Metrics | None = None,
    clock: Callable[[], float] = time.monotonic,
    **settings: Any,
) -> Iterator[Running]:
    """The same in a thread."""
    started: list[Running] = []
    ready, done = threading.Event(), threading.Event()
    failure: list[BaseException] = []

    async def serve() -> None:
        async with serving(backend, metrics=metrics, clock=clock, **settings) as running:
            started.append(running)
            ready.set()
            await asyncio.to_thread(done.wait)

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failure.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="server", daemon=True)
    thread.start()
    ready.wait()
    try:
        if failure:
            raise failure[0]
        yield started[0]
    finally:
        done.set()
        thread.join()
    if failure:
        raise failure[0]
