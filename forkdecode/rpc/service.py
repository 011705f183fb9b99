"""The service's calls, registered so that what cannot be parsed is refused as any other wrong request."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, TypeAlias

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from forkdecode.errors import InvalidRequestError
from forkdecode.rpc.parse import parse
from forkdecode.rpc.status import status_of
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.rpc.v1.decode_pb2_grpc import DecodeServiceServicer

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
SERVICE = pb.DESCRIPTOR.services_by_name["DecodeService"]


def add_decode_service(servicer: DecodeServiceServicer, server: grpc.aio.Server) -> None:
    """Instead of the generated function, whose calls end with INTERNAL when a request cannot be parsed:
    here they end with INVALID_ARGUMENT naming the field, as they do for fields that are unknown."""
    handlers = {method.name: _handler(method, getattr(servicer, method.name)) for method in SERVICE.methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),))


def _handler(method: MethodDescriptor, behaviour: Callable[..., Any]) -> grpc.RpcMethodHandler[Any, Any]:
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    make = (
        grpc.unary_stream_rpc_method_handler
        if method.server_streaming
        else grpc.unary_unary_rpc_method_handler
    )
    wrap = _guarded_stream if inspect.isasyncgenfunction(behaviour) else _guarded
    return make(
        wrap(behaviour),
        request_deserializer=partial(_read, request),
        response_serializer=response.SerializeToString,
    )


def _read(kind: type[Message], data: bytes) -> Message | InvalidRequestError:
    try:
        return parse(kind, data)
    except InvalidRequestError as error:
        return error


def _guarded(behaviour: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def call(request: Message | InvalidRequestError, context: _Context) -> Any:
        if isinstance(request, InvalidRequestError):
            await context.abort(*status_of(request))
        return await behaviour(request, context)

    return call


def _guarded_stream(behaviour: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., AsyncIterator[Any]]:
    async def call(request: Message | InvalidRequestError, context: _Context) -> AsyncIterator[Any]:
        if isinstance(request, InvalidRequestError):
            await context.abort(*status_of(request))
        async with aclosing(behaviour(request, context)) as messages:
            async for message in messages:
                yield message

    return call
