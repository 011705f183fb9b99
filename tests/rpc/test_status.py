"""Errors cross a real gRPC call with their class, field, limit, request id and delay; others tell nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from forkdecode import errors
from forkdecode.errors import (
    AuthenticationError,
    CancelledError,
    CapacityError,
    DeadlineError,
    EngineClosedError,
    ForkdecodeError,
    GroupFailedError,
    InvalidRequestError,
    ModelLoadError,
    NoLegalTokenError,
    QueueFullError,
    UnavailableError,
)
from forkdecode.rpc.status import DETAILS_KEY, error_of, status_of
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.rpc.v1 import decode_pb2_grpc

CODES = {
    InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    CapacityError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    QueueFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    CancelledError: grpc.StatusCode.CANCELLED,
    GroupFailedError: grpc.StatusCode.INTERNAL,
    NoLegalTokenError: grpc.StatusCode.FAILED_PRECONDITION,
    UnavailableError: grpc.StatusCode.UNAVAILABLE,
    EngineClosedError: grpc.StatusCode.UNAVAILABLE,
    AuthenticationError: grpc.StatusCode.UNAUTHENTICATED,
    DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
}
SECRET = "the secret of the house"


class Failing(decode_pb2_grpc.DecodeServiceServicer):
    """Fails every call."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def Decode(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        yield pb.DecodeEvent(request_id="r")
        await context.abort(*status_of(self._error, request))

    async def GetStats(self, request: Any, context: Any) -> Any:  # noqa: N802
        await context.abort(*status_of(self._error, request))


@asynccontextmanager
async def serving(error: BaseException) -> AsyncIterator[str]:
    server = grpc.aio.server()
    decode_pb2_grpc.add_DecodeServiceServicer_to_server(Failing(error), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@dataclasses.dataclass
class Crossed:
    """What a caller gets: gRPC's error, and ours."""

    rpc: Any
    error: ForkdecodeError

    @property
    def details(self) -> dict[str, Any]:
        """google.rpc details by name."""
        data = next(value for key, value in self.rpc.trailing_metadata() if key == DETAILS_KEY)
        found = {}
        for detail in status_pb2.Status.FromString(data).details:
            message = getattr(error_details_pb2, detail.type_url.rpartition(".")[2])()
            assert detail.Unpack(message)
            found[type(message).__name__] = message
        return found


async def fail(error: BaseException, *, request: pb.DecodeRequest | None, sync: bool) -> Crossed:
    async with serving(error) as address:
        if sync:
            return await asyncio.to_thread(call_sync, address, request)
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = decode_pb2_grpc.DecodeServiceStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                await (stub.GetStats(pb.GetStatsRequest()) if request is None else read(stub.Decode(request)))
    return Crossed(caught.value, error_of(caught.value))


async def read(stream: Any) -> None:
    async for _ in stream:
        pass


def call_sync(address: str, request: pb.DecodeRequest | None) -> Crossed:
    with grpc.insecure_channel(address) as channel:
        stub: Any = decode_pb2_grpc.DecodeServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.GetStats(pb.GetStatsRequest()) if request is None else list(stub.Decode(request))
        return Crossed(caught.value, error_of(caught.value))


def crossed(error: BaseException, *, request: pb.DecodeRequest | None = None, sync: bool = False) -> Crossed:
    return asyncio.run(fail(error, request=request, sync=sync))


def test_every_error_has_a_code() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    raised = {kind for kind in kinds if issubclass(kind, ForkdecodeError)}
    assert raised - {ForkdecodeError, ModelLoadError} == set(CODES)


@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_everything_of_an_error_crosses(kind: type[ForkdecodeError], sync: bool) -> None:
    error = kind(
        "top_p: 3 is out of range — ärgerlich",
        field="top_p",
        limit="0 to 1",
        request_id="r-1",
        retry_after=0.25,
    )
    request = pb.DecodeRequest(sample=pb.Sample())
    got = crossed(error, request=request, sync=sync)
    assert type(got.error) is kind
    assert got.rpc.code() == CODES[kind]
    assert str(got.error) == str(error)
    for name in ("field", "limit", "request_id", "retry_after"):
        assert getattr(got.error, name) == getattr(error, name)
    [violation] = got.details["BadRequest"].field_violations
    assert violation.field == "sample.sampling.top_p"
    assert violation.description == str(error)
    assert got.details["RetryInfo"].retry_delay.ToMilliseconds() == 250
    info = got.details["ErrorInfo"]
    assert (info.reason, info.domain) == (kind.__name__, "forkdecode")
    assert dict(info.metadata) == {"field": "top_p", "limit": "0 to 1", "request_id": "r-1"}


@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
def test_what_an_error_lacks_it_lacks_there(kind: type[ForkdecodeError]) -> None:
    got = crossed(kind("no"))
    assert type(got.error) is kind
    assert (got.error.field, got.error.limit, got.error.request_id, got.error.retry_after) == (None,) * 4
    assert set(got.details) == {"ErrorInfo"}


def caused(error: ForkdecodeError) -> ForkdecodeError:
    error.__cause__ = ValueError(SECRET)
    return error


@pytest.mark.parametrize(
    "error",
    [
        ValueError(SECRET),
        KeyError(SECRET),
        OSError(2, SECRET),
        ForkdecodeError(SECRET),
        ModelLoadError(SECRET),
        caused(GroupFailedError(f"the step failed: ValueError: {SECRET}", request_id="r-1")),
        caused(EngineClosedError(f"the engine died: {SECRET}")),
        caused(UnavailableError(SECRET)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_was_not_meant_for_callers_stays(error: BaseException) -> None:
    got = crossed(error)
    assert got.rpc.code() == CODES.get(type(error), grpc.StatusCode.INTERNAL)
    assert "internal error" in str(got.error)
    told = f"{got.rpc.details()}{got.rpc.trailing_metadata()}{got.rpc.debug_error_string()}{got.details}"
    assert SECRET not in told


def test_a_failure_keeps_its_class_and_request_when_its_cause_stays() -> None:
    got = crossed(caused(GroupFailedError(SECRET, request_id="r-1")))
    assert type(got.error) is GroupFailedError
    assert got.error.request_id == "r-1"


def test_a_wrong_request_may_quote_what_refused_it() -> None:
    error = caused(InvalidRequestError("prompt: the chat template refuses it: no user", field="prompt"))
    assert "no user" in str(crossed(error).error)


def test_a_cancelled_task_is_a_cancelled_request() -> None:
    assert type(crossed(asyncio.CancelledError()).error) is CancelledError


def test_a_subclass_crosses_as_the_class_that_is_known() -> None:
    class OddError(InvalidRequestError):
        pass

    assert type(crossed(OddError("odd", field="n")).error) is InvalidRequestError


@pytest.mark.parametrize("character", ["x", "é", "\U0001f600", "\0", "%"])
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_long_texts_are_cut_rather_than_lost(character: str, sync: bool) -> None:
    long = character * 100_000
    error = InvalidRequestError(long, field=long, limit=long, request_id=long, retry_after=1.0)
    got = crossed(error, sync=sync)
    assert type(got.error) is InvalidRequestError
    assert str(got.error).startswith(character * 100)
    assert (got.error.field or "").startswith(character * 50)
    assert got.error.retry_after == 1.0


def test_text_that_is_not_unicode_does_no_harm() -> None:
    assert str(crossed(InvalidRequestError("a \ud800 b")).error) == "a ? b"


def test_a_negative_delay_is_none_to_wait() -> None:
    assert crossed(QueueFullError("full", retry_after=-1.0)).error.retry_after == 0.0


class Foreign(grpc.RpcError):
    """A status as other servers, proxies or gRPC itself give it."""

    def __init__(self, code: grpc.StatusCode, trailers: Any = None) -> None:
        self._code, self._trailers = code, trailers

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str | None:
        return "no route"

    def trailing_metadata(self) -> Any:
        return self._trailers


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_a_foreign_status_has_an_error_by_its_code(code: grpc.StatusCode) -> None:
    error = error_of(Foreign(code))
    expected = {its_code: kind for kind, its_code in reversed(CODES.items())}
    expected |= {
        grpc.StatusCode.INTERNAL: ForkdecodeError,
        grpc.StatusCode.FAILED_PRECONDITION: ForkdecodeError,
        grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
        grpc.StatusCode.PERMISSION_DENIED: AuthenticationError,
    }
    assert type(error) is expected.get(code, ForkdecodeError)
    assert str(error) == f"{code.name}: no route"


def foreign(*details: Any) -> ForkdecodeError:
    status = status_pb2.Status(code=8)
    for detail in details:
        status.details.add().Pack(detail)
    trailers = (("other", "x"), (DETAILS_KEY, status.SerializeToString()))
    return error_of(Foreign(grpc.StatusCode.RESOURCE_EXHAUSTED, trailers))


def test_foreign_details_are_used() -> None:
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(1500)
    bad = error_details_pb2.BadRequest()
    bad.field_violations.add(field="options.max_tokens", description="no")
    stranger = error_details_pb2.ErrorInfo(reason="DeadlineError", domain="elsewhere")
    error = foreign(stranger, bad, retry, error_details_pb2.Help())
    assert type(error) is QueueFullError
    assert (error.field, error.retry_after) == ("max_tokens", 1.5)
    assert type(foreign()) is CapacityError


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x1a\x02\x0a\xff", "text", b""])
def test_broken_details_do_no_harm(data: Any) -> None:
    error = error_of(Foreign(grpc.StatusCode.UNAVAILABLE, ((DETAILS_KEY, data),)))
    assert type(error) is UnavailableError
    unpackable = status_pb2.Status()
    broken = unpackable.details.add()
    broken.type_url, broken.value = "type.googleapis.com/google.rpc.ErrorInfo", b"\xff"
    trailers = ((DETAILS_KEY, unpackable.SerializeToString()),)
    assert type(error_of(Foreign(grpc.StatusCode.UNAVAILABLE, trailers))) is UnavailableError
