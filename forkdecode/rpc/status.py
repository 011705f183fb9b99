"""Errors to gRPC statuses with google.rpc details, and back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from forkdecode import errors
from forkdecode.errors import ForkdecodeError
from forkdecode.rpc.fields import field_path
from forkdecode.rpc.v1 import decode_pb2 as pb

DOMAIN = "forkdecode"
"""Of ErrorInfo: whose reasons they are."""
DETAILS_KEY = "grpc-status-details-bin"
MAX_TEXT = 800
"""UTF-8 bytes of a message: clients take headers of 8 KiB in all, and there it is three times as long."""
MAX_DETAIL = 400
"""UTF-8 bytes of a field, a limit or a request id."""

_Code = grpc.StatusCode
_CODES: Mapping[type[ForkdecodeError], grpc.StatusCode] = {
    errors.InvalidRequestError: _Code.INVALID_ARGUMENT,
    errors.CapacityError: _Code.RESOURCE_EXHAUSTED,
    errors.QueueFullError: _Code.RESOURCE_EXHAUSTED,
    errors.CancelledError: _Code.CANCELLED,
    errors.GroupFailedError: _Code.INTERNAL,
    errors.NoLegalTokenError: _Code.FAILED_PRECONDITION,
    errors.UnavailableError: _Code.UNAVAILABLE,
    errors.EngineClosedError: _Code.UNAVAILABLE,
    errors.AuthenticationError: _Code.UNAUTHENTICATED,
    errors.DeadlineError: _Code.DEADLINE_EXCEEDED,
    ForkdecodeError: _Code.INTERNAL,
}
_CAUSED: Mapping[type[ForkdecodeError], str] = {
    errors.GroupFailedError: "the request failed: internal error",
    errors.EngineClosedError: "the engine ended before the request finished: internal error",
    errors.UnavailableError: "the service is down: internal error",
}
"""What callers are told instead of the text when another exception is behind it, which the text may quote."""
_CLASSES = {kind.__name__: kind for kind in _CODES}
_BY_CODE: Mapping[grpc.StatusCode, type[ForkdecodeError]] = {
    _Code.INVALID_ARGUMENT: errors.InvalidRequestError,
    _Code.OUT_OF_RANGE: errors.InvalidRequestError,
    _Code.RESOURCE_EXHAUSTED: errors.CapacityError,
    _Code.CANCELLED: errors.CancelledError,
    _Code.UNAVAILABLE: errors.UnavailableError,
    _Code.UNAUTHENTICATED: errors.AuthenticationError,
    _Code.PERMISSION_DENIED: errors.AuthenticationError,
    _Code.DEADLINE_EXCEEDED: errors.DeadlineError,
}
"""For a status without our details: of a proxy, of another server, or of gRPC itself."""
_TOO_LARGE = re.compile(r"(?:SERVER: )?Received message larger than max \((\d+) vs\. (\d+)\)")
"""What gRPC itself says of a request that the server takes no more of."""


class RpcStatus(NamedTuple):
    """The arguments of a servicer context's `abort`."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


def status_of(error: BaseException, request: Message | None = None) -> RpcStatus:
    """What a caller is told of an error. request: the one at fault, if any, so that its field is named
    by its path there. Of what was not raised on purpose the caller learns nothing but that."""
    kind, text = _told(error)
    code = _CODES[kind]
    known = error if isinstance(error, ForkdecodeError) else ForkdecodeError(text)
    status = status_pb2.Status(code=code.value[0], message=_short(text))
    for detail in _details(kind, known, status.message, request):
        status.details.add().Pack(detail)
    return RpcStatus(code, status.message, ((DETAILS_KEY, status.SerializeToString()),))


def error_message(error: BaseException, command: Message | None = None) -> pb.Error:
    """The same as status_of tells, as a message of a stream that goes on."""
    kind, text = _told(error)
    message = pb.Error(reason=kind.__name__, code=_CODES[kind].value[0], message=_short(text))
    if isinstance(error, ForkdecodeError):
        if error.field is not None:
            message.field = _short(error.field, MAX_DETAIL)
            path = field_path(error.field, command)
            if path:
                message.path = _short(path, MAX_DETAIL)
        if error.limit is not None:
            message.limit = _short(error.limit, MAX_DETAIL)
        if error.retry_after is not None:
            message.retry_after = max(0.0, error.retry_after)
    return message


def told_error(message: pb.Error) -> ForkdecodeError:
    """The exception that a message stands for; one of an unknown name is told by its code."""
    codes = {code.value[0]: code for code in _Code}
    retry = message.retry_after if message.HasField("retry_after") else None
    code = codes.get(message.code, _Code.UNKNOWN)
    kind = _CLASSES.get(message.reason) or _by_code(code, retry)
    return kind(
        message.message,
        field=message.field if message.HasField("field") else None,
        limit=message.limit if message.HasField("limit") else None,
        retry_after=retry,
    )


def _told(error: BaseException) -> tuple[type[ForkdecodeError], str]:
    """The class and the text that leave the server."""
    if isinstance(error, asyncio.CancelledError):
        return errors.CancelledError, "the request was cancelled"
    kind = next((k for k in type(error).__mro__ if k in _CODES), None)
    if kind is None or kind is ForkdecodeError:
        return ForkdecodeError, "internal error"
    return kind, str(error) if error.__cause__ is None else _CAUSED.get(kind, str(error))


def _details(
    kind: type[ForkdecodeError], error: ForkdecodeError, text: str, request: Message | None
) -> Iterable[Message]:
    told = {"field": error.field, "limit": error.limit, "request_id": error.request_id}
    metadata = {key: _short(value, MAX_DETAIL) for key, value in told.items() if value is not None}
    yield error_details_pb2.ErrorInfo(reason=kind.__name__, domain=DOMAIN, metadata=metadata)
    if error.field is not None:
        bad = error_details_pb2.BadRequest()
        path = _short(field_path(error.field, request), MAX_DETAIL)
        bad.field_violations.add(field=path, description=text)
        yield bad
    if error.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(max(0.0, error.retry_after) * 1e9))
        yield retry


def _short(text: str, size: int = MAX_TEXT) -> str:
    data = text.encode("utf-8", "replace")
    return data.decode() if len(data) <= size else data[: size - 3].decode("utf-8", "ignore") + "..."


def error_of(error: Any) -> ForkdecodeError:
    """The exception that a failed call stands for: `error` is a grpc.RpcError of a sync or an asyncio
    call. Without our details it is told by the status code."""
    code, text, trailers = error.code(), error.details() or "", error.trailing_metadata() or ()
    info, bad, retry = _found(trailers)
    if code is _Code.RESOURCE_EXHAUSTED and (sizes := _TOO_LARGE.match(text)):
        limit = f"at most {sizes[2]} bytes"
        problem = f"request: it has {sizes[1]} bytes; allowed: {limit}"
        return errors.CapacityError(problem, field="request", limit=limit)
    kind = _CLASSES.get(info.reason, ForkdecodeError) if info.domain == DOMAIN else _by_code(code, retry)
    field = info.metadata.get("field")
    if field is None and bad.field_violations:
        field = bad.field_violations[0].field.rpartition(".")[2]
    return kind(
        text if info.domain == DOMAIN else f"{code.name}: {text}",
        field=field,
        limit=info.metadata.get("limit"),
        request_id=info.metadata.get("request_id"),
        retry_after=retry.retry_delay.ToNanoseconds() / 1e9 if retry is not None else None,
    )


def is_told(error: Any) -> bool:
    """Whether a failed call has our details: a server of ours said so, not a proxy or gRPC itself."""
    info, _, _ = _found(error.trailing_metadata() or ())
    return bool(info.domain == DOMAIN)


def _by_code(code: grpc.StatusCode, retry: object | None) -> type[ForkdecodeError]:
    if code is _Code.RESOURCE_EXHAUSTED and retry is not None:
        return errors.QueueFullError
    return _BY_CODE.get(code, ForkdecodeError)


def _found(
    trailers: Iterable[tuple[str, str | bytes]],
) -> tuple[error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo | None]:
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    has_retry = False
    for detail in _status(trailers).details:
        try:
            detail.Unpack(info)
            detail.Unpack(bad)
            has_retry = detail.Unpack(retry) or has_retry
        except DecodeError:
            continue
    return info, bad, retry if has_retry else None


def _status(trailers: Iterable[tuple[str, str | bytes]]) -> status_pb2.Status:
    for key, value in trailers:
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                break
    return status_pb2.Status()
