"""A server put together: its port, its services, its beginning and its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health

from forkdecode.errors import UnavailableError
from forkdecode.requests.prepare import RequestMaker
from forkdecode.results import ServedModel
from forkdecode.server.address import (
    Address,
    bind_problem,
    check_unused,
)
from forkdecode.server.backend import Backend, EngineState
from forkdecode.server.guard import Guard
from forkdecode.server.health import Health
from forkdecode.server.loading import LOADING_PATIENCE, Loading
from forkdecode.server.methods import SERVICE, MethodTable
from forkdecode.server.metrics import Metrics
from forkdecode.server.record import Recorder
from forkdecode.server.reflection import ReflectionGuard, add_reflection
from forkdecode.server.running import BUSY_RETRY, DRAIN_RETRY, Running, going_down
from forkdecode.server.servicer import Servicer
from forkdecode.server.serving import Serving
from forkdecode.server.settings import ServerSettings
from forkdecode.server.stream import Courier
from forkdecode.server.tree_service import TreeService
from forkdecode.server.trees import Trees
from forkdecode.server.workers import Workers

_LAST_WORDS = 1.0
"""Seconds in which callers may take their last status before connections are closed."""


class Server:
    """bind(), open(), start(), then drain() or stop(), all within one event loop."""

    def __init__(
        self,
        settings: ServerSettings,
        log: Any,
        metrics: Metrics | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        loading_patience: float = LOADING_PATIENCE,
    ) -> None:
        """clock: by which tree sessions are idle or away for too long. loading_patience: seconds for which
        calls wait for start()."""
        self._settings = settings
        self._log = log
        self._metrics = metrics
        self._clock = clock
        self._running = Running(settings.max_requests)
        self._recorder = Recorder(log, metrics)
        self._guard = Guard(settings.tokens, self._running, self._recorder)
        self._methods = MethodTable()
        self._loading = Loading(self._guard, loading_patience)
        self._health = Health()
        self._servicer: Servicer | None = None
        self._trees: Trees | None = None
        self._workers = Workers("forkdecode-requests")
        # Their own: a session's commands wait for its grammars.
        self._tree_workers = Workers("forkdecode-trees")
        self._loop = asyncio.get_running_loop()
        self._server = grpc.aio.server(
            interceptors=[ReflectionGuard(settings.tokens)], options=_channel_options(settings)
        )

    def bind(self) -> Address:
        """Takes the port; the address with the port that it is. Raises InvalidRequestError for a wrong
        setting, OSError for a port that can't be had."""
        address = self._settings.address()
        tls = self._settings.tls
        credentials = None if tls is None else tls.credentials()
        check_unused(address)
        try:
            if credentials is None:
                port = self._server.add_insecure_port(str(address))
            else:
                port = self._server.add_secure_port(str(address), credentials)
        except RuntimeError:
            problem = bind_problem(address)
            if problem is None and tls is not None:
                raise tls.refused() from None
            problem = problem or "gRPC can't listen there"
            raise OSError(f"listen: {address} can't be had: {problem}") from None
        if tls is not None and (doubt := tls.doubt()) is not None:
            self._log.warning("certificate", file=str(tls.cert), problem=doubt)
        return address if address.path else replace(address, port=port)

    async def open(self) -> None:
        """Answers on the port that bind() took, while there is nothing to serve yet: health is NOT_SERVING,
        and calls wait, as Loading has it."""
        self._methods.answer_by(self._loading.calls)
        self._server.add_generic_rpc_handlers((self._methods,))
        self._health.add_to(self._server)
        add_reflection(self._server, (SERVICE.full_name, health.SERVICE_NAME))
        await self._server.start()

    async def start(self, backend: Backend) -> None:
        """Serves `backend` from now on."""
        requests = RequestMaker(backend.tokenizer, backend.info, backend.catalogues)
        courier = Courier(self._loop, backend.bell)
        serving = Serving(backend.engine, requests, self._running, courier, self._workers)
        self._servicer = Servicer(
            serving,
            _served_model(backend, self._settings),
            self._guard,
            self._recorder,
            stall_timeout=self._settings.stall_timeout,
            log_prompts=self._settings.log_prompts,
        )
        self._trees = Trees(
            self._settings.trees,
            replace(serving, workers=self._tree_workers),
            block_size=backend.capacity.block_size,
            max_command_bytes=self._settings.max_request_bytes,
            clock=self._clock,
        )
        service = TreeService(
            self._trees, self._guard, self._tree_workers, stall_timeout=self._settings.stall_timeout
        )
        calls = {**self._servicer.calls, "Session": service.session}
        self._methods.answer_by(calls)
        if self._metrics is not None:
            self._metrics.watch_engine(backend.engine.stats)
            self._metrics.watch_trees(self._trees)
        backend.watch(self._hear_anywhere)
        await asyncio.sleep(0)  # what the engine has come to is heard in a turn of the loop
        self._loading.is_over(calls)

    @property
    def trees(self) -> Trees:
        """Its tree sessions, once it has started."""
        assert self._trees is not None, "it has started"
        return self._trees

    async def drain(self, grace: float) -> None:
        """Takes no more requests, lets those that run finish within `grace` seconds, ends the rest with
        UNAVAILABLE, and stops."""
        self._log.info("draining", requests=self._running.calls, grace_seconds=grace)
        self._running.drain()
        if self._trees is not None:
            self._trees.drain()
        self._health.shut_down()
        try:
            async with asyncio.timeout(grace):
                await self._running.idle()
        except TimeoutError:
            ended = self._running.end_all(
                UnavailableError("the server shut down before the request finished", retry_after=DRAIN_RETRY)
            )
            if self._trees is not None:
                ended += self._trees.end_all(going_down())
            self._log.warning("grace_over", ended=ended)
        await self.stop(_LAST_WORDS)

    async def stop(self, last_words: float = 0.0) -> None:
        """Ends whatever still runs and closes the port. Idempotent."""
        if self._trees is not None:
            self._trees.end_all(going_down())
        await self._server.stop(last_words)
        if self._servicer is not None:
            self._servicer.close()
        for workers in (self._workers, self._tree_workers):
            workers.close()

    def _hear_anywhere(self, state: EngineState) -> None:
        if self._metrics is not None:
            self._metrics.engine_state(state)
        try:
            self._loop.call_soon_threadsafe(self._hear, state)
        except RuntimeError:  # the loop has ended, and the server with it
            return

    def _hear(self, state: EngineState) -> None:
        self._log.info("engine", state=state)
        self._health.hear(state)
        if state == "down" and self._trees is not None:
            ended = self._trees.end_all(
                UnavailableError("the engine ended, and the tree session with it", retry_after=BUSY_RETRY)
            )
            if ended:
                self._log.warning("trees_ended", ended=ended)


def _served_model(backend: Backend, settings: ServerSettings) -> ServedModel:
    info, tokenizer = backend.info, backend.tokenizer
    return ServedModel(
        name=info.name,
        dtype=info.dtype,
        vocab_size=info.vocab_size,
        max_positions=info.max_positions,
        eos_ids=info.eos_ids,
        block_size=backend.capacity.block_size,
        num_blocks=backend.capacity.num_blocks,
        has_chat_template=bool(getattr(tokenizer, "chat_template", None)),
        has_tokenizer=tokenizer is not None,
        version=version("forkdecode"),
        max_request_bytes=settings.max_request_bytes,
        catalogues=() if backend.catalogues is None else backend.catalogues.names(),
    )


def _channel_options(settings: ServerSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.max_request_bytes),
        # A result is as large as its request asked for.
        ("grpc.max_send_message_length", -1),
        # A second server on the same port is an error, not a twin.
        ("grpc.so_reuseport", 0),
        # Above what we admit ourselves, so that too many calls get our answer.
        ("grpc.max_concurrent_streams", settings.max_requests + 1000),
        # A burst of them waits here until the loop comes round. By itself gRPC drops calls at random once a
        # thousand wait, and all from three thousand on, with a CANCELLED that says nothing.
        ("grpc.server.max_pending_requests", settings.max_requests + 1000),
        ("grpc.server.max_pending_requests_hard_limit", 2 * settings.max_requests + 2000),
        # A machine that vanished without a word is noticed, and its requests end.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # A process that was stopped, too: its machine still takes what we send.
        ("grpc.http2.ping_timeout_ms", 20_000),
        # After however long a silence: by itself gRPC stops asking after two questions.
        ("grpc.http2.max_pings_without_data", 0),
        # Clients may ask the same of us, as often as they like. By itself gRPC hangs up on who asks again
        # within five minutes in which nothing else is said: an idle tree session, a long prompt.
        ("grpc.http2.max_ping_strikes", 0),
    ]
