"""The table of methods that gRPC calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import grpc
from google.protobuf.message_factory import GetMessageClass

from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.server.guard import Context

SERVICE = pb.DESCRIPTOR.services_by_name["DecodeService"]
Call: TypeAlias = Callable[[AsyncIterator[bytes], Context], Awaitable[Any]]


class MethodTable(grpc.GenericRpcHandler):
    """DecodeService's methods by name, from the protocol's descriptor.

    They get a request's bytes as they come, those of one message too: a caller who is unknown is told so
    before anything is read, long ones are parsed in a worker, and bytes that are no request, or none at
    all, are a wrong request like any other. By itself gRPC leaves a call that ends without its message
    unanswered.
    """

    def __init__(self) -> None:
        self._handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def answer_by(self, calls: Mapping[str, Call]) -> None:
        """From now on; calls that run go on as they began."""
        self._handlers = {
            f"/{SERVICE.full_name}/{name}": _handler(name, call) for name, call in calls.items()
        }

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._handlers.get(handler_call_details.method)


def _handler(name: str, call: Call) -> grpc.RpcMethodHandler[Any, Any]:
    method = SERVICE.methods_by_name[name]
    make: Callable[..., grpc.RpcMethodHandler[Any, Any]] = (
        grpc.stream_stream_rpc_method_handler
        if method.server_streaming
        else grpc.stream_unary_rpc_method_handler
    )
    return make(call, response_serializer=GetMessageClass(method.output_type).SerializeToString)
