"""grpc.health.v1: what the engine's state means to a load balancer."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2

from forkdecode.server.backend import EngineState
from forkdecode.server.guard import Context
from forkdecode.server.methods import SERVICE

_Request, _Response = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
_NAMES = "", SERVICE.full_name


class Health:
    """SERVING while the engine is, for the server ("") and the service. Belongs to the loop.

    Whoever watches is told by a task of its own: one that reads nothing holds up nobody. (grpc_health's own
    servicer writes to each under a lock that its changes wait for.)
    """

    def __init__(self) -> None:
        self._status: int = _Response.NOT_SERVING
        self._changed = asyncio.Event()
        self._is_over = False

    def add_to(self, server: grpc.aio.Server) -> None:
        """Adds the service, NOT_SERVING at first."""
        asked, told = _Request.FromString, _Response.SerializeToString
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check, asked, told),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch, asked, told),
        }
        handler = grpc.method_handlers_generic_handler(health.SERVICE_NAME, methods)
        server.add_generic_rpc_handlers((handler,))

    def hear(self, state: EngineState) -> None:
        """The engine has come to `state`."""
        if not self._is_over:
            self._become(_Response.SERVING if state == "serving" else _Response.NOT_SERVING)

    def shut_down(self) -> None:
        """NOT_SERVING from now on."""
        self._is_over = True
        self._become(_Response.NOT_SERVING)

    def _become(self, status: int) -> None:
        self._status = status
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _check(self, request: Any, context: Context) -> Any:
        if request.service not in _NAMES:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return _Response(status=self._status)

    async def _watch(self, request: Any, context: Context) -> None:
        known, told = request.service in _NAMES, None
        while True:
            changed = self._changed
            status = self._status if known else _Response.SERVICE_UNKNOWN
            if status != told:
                await context.write(_Response(status=status))
                told = status
            await changed.wait()
