"""Server reflection is for those who may call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from forkdecode.errors import AuthenticationError
from forkdecode.rpc.status import status_of
from forkdecode.server.auth import TokenBook

_PREFIX = "/grpc.reflection."


class ReflectionGuard(grpc.aio.ServerInterceptor):
    """Asks for a token where the server does. The service's own calls are asked by Guard; health is
    open, because load balancers have no token."""

    def __init__(self, tokens: TokenBook) -> None:
        self._tokens = tokens

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        if handler_call_details.method.startswith(_PREFIX):
            try:
                self._tokens.identify(handler_call_details.invocation_metadata)
            except AuthenticationError as error:
                return _refusal(error)
        return await continuation(handler_call_details)


def _refusal(error: AuthenticationError) -> grpc.RpcMethodHandler[Any, Any]:
    async def refuse(requests: AsyncIterator[Any], context: Any) -> None:
        await context.abort(*status_of(error))

    return grpc.stream_stream_rpc_method_handler(refuse)
