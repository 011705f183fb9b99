"""The table of methods that gRPC calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.server.servicer import Servicer
from forkdecode.server.tree_service import TreeService

SERVICE = pb.DESCRIPTOR.services_by_name["DecodeService"]
_HANDLERS: Mapping[tuple[bool, bool], Callable[..., grpc.RpcMethodHandler[Any, Any]]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
"""By whether the client streams, and the server."""


def method_table(servicer: Servicer, trees: TreeService) -> grpc.GenericRpcHandler:
    """DecodeService's methods by name, from the protocol's descriptor.

    They get a request's bytes as they came: a caller who is unknown is told so before anything is read,
    long ones are parsed in a worker, and bytes that are no request are a wrong request like any other.
    """
    calls: Mapping[str, Callable[[Any, Any], Awaitable[Any]]] = {
        "Decode": servicer.decode,
        "Score": servicer.score,
        "Session": trees.session,
        "Tokenize": servicer.tokenize,
        "Detokenize": servicer.detokenize,
        "GetModel": servicer.get_model,
        "GetStats": servicer.get_stats,
    }
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for name, call in calls.items():
        method = SERVICE.methods_by_name[name]
        make = _HANDLERS[method.client_streaming, method.server_streaming]
        response = GetMessageClass(method.output_type)
        handlers[name] = make(call, response_serializer=response.SerializeToString)
    return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)
