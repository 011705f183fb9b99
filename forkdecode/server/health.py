"""grpc.health.v1: what the engine's state means to a load balancer."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from forkdecode.server.backend import EngineState
from forkdecode.server.methods import SERVICE

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """SERVING while the engine is, for the server ("") and the service. Belongs to the loop."""

    def __init__(self) -> None:
        self._servicer = health.aio.HealthServicer()
        self._state: EngineState = "starting"
        self._tasks: set[asyncio.Task[None]] = set()

    async def add_to(self, server: grpc.aio.Server) -> None:
        """Adds the service, NOT_SERVING at first."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        await self._tell()

    def hear(self, state: EngineState) -> None:
        """The engine has come to `state`."""
        self._state = state
        self._spawn(self._tell())

    async def told(self) -> None:
        """Waits until watchers were told of what the engine had come to before."""
        await asyncio.sleep(0)  # it is heard in a turn of the loop
        await asyncio.gather(*self._tasks)

    async def shut_down(self) -> None:
        """NOT_SERVING from now on."""
        await self._servicer.enter_graceful_shutdown()

    async def _tell(self) -> None:
        # The state as it is when it is this task's turn: the last one stands.
        for name in ("", SERVICE.full_name):
            status = _SERVING if self._state == "serving" else _NOT_SERVING
            await self._servicer.set(name, status)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
