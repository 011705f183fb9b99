"""Server reflection, for those who may call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from forkdecode.errors import AuthenticationError
from forkdecode.rpc.status import status_of
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.server.auth import TokenBook

_PREFIX = "/grpc.reflection."
_ALPHA, _STABLE = "grpc.reflection.v1alpha", "grpc.reflection.v1"
"""The same messages and methods, byte for byte, in two packages. grpcio-reflection has the older alone,
and there are clients that ask for the newer alone."""


def add_reflection(server: grpc.aio.Server, services: Iterable[str]) -> None:
    """Adds both versions. services: full names of the others that it tells of."""
    names = [*services, f"{_ALPHA}.ServerReflection", f"{_STABLE}.ServerReflection"]
    servicer = reflection.aio.ReflectionServicer(names, pool=_WithMethods(_described()))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    stable = grpc.method_handlers_generic_handler(names[-1], {"ServerReflectionInfo": method})
    server.add_generic_rpc_handlers((stable,))


class _WithMethods:
    """A pool that also tells in which file a method is: clients ask for `service.method`, too."""

    def __init__(self, pool: DescriptorPool) -> None:
        self._pool = pool

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:  # noqa: N802
        """Raises KeyError."""
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return self._pool.FindMethodByName(symbol).containing_service.file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


def _described() -> DescriptorPool:
    """All that is told of, and what statuses of errors hold. A pool of its own: the process's is not ours to
    add to."""
    pool = DescriptorPool()
    for module in (pb, health_pb2, reflection_pb2, error_details_pb2, status_pb2):
        _add_with_imports(pool, module.DESCRIPTOR)
    pool.Add(_stable(reflection_pb2.DESCRIPTOR))
    return pool


def _add_with_imports(pool: DescriptorPool, file: FileDescriptor) -> None:
    for imported in file.dependencies:
        _add_with_imports(pool, imported)
    pool.Add(_proto(file))


def _proto(file: FileDescriptor) -> FileDescriptorProto:
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    return proto


def _stable(alpha: FileDescriptor) -> FileDescriptorProto:
    """The file of the newer version, from that of the older."""
    proto = _proto(alpha)
    proto.name = alpha.name.replace("v1alpha", "v1")
    proto.package = _STABLE
    for message in proto.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(_ALPHA, _STABLE)
    for method in proto.service[0].method:
        method.input_type = method.input_type.replace(_ALPHA, _STABLE)
        method.output_type = method.output_type.replace(_ALPHA, _STABLE)
    return proto


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
