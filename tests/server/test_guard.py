"""How calls end, whatever gRPC makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
import structlog

from forkdecode.engine.log import json_logger
from forkdecode.errors import DeadlineError
from forkdecode.server.auth import TokenBook
from forkdecode.server.guard import Guard, is_over
from forkdecode.server.methods import SERVICE
from forkdecode.server.record import CallRecord, Recorder
from forkdecode.server.running import Running as Places
from forkdecode.server.stream import too_slow
from tests.server.calls import refused, request_of, stub_of
from tests.server.puppet import Puppet
from tests.server.servers import Log, Running, running_server
from tests.server.tree_calls import raw


@pytest.fixture
def server() -> Iterator[Running]:
    with running_server(Puppet().backend()) as running:
        yield running


class Going:
    """The context of a call that takes no status any more, but does not say so."""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def peer_identities(self) -> None:
        return None

    def time_remaining(self) -> None:
        return None

    def done(self) -> bool:
        return False

    async def abort(self, *_: Any) -> None:
        raise RuntimeError("too many operations")


def test_a_refusal_is_no_fault_to_grpc(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    wrong = request_of(max_tokens=1)
    wrong.options.max_tokens = 0
    with stub_of(server) as stub:
        refused(lambda: stub.Decode(wrong))
    assert [r.getMessage() for r in caplog.records if r.name.startswith("grpc")] == []


@pytest.mark.parametrize("method", [method.name for method in SERVICE.methods])
def test_a_call_that_ends_without_a_message_is_refused_at_once(server: Running, method: str) -> None:
    with server.channel() as channel:
        call = channel.stream_stream(f"/{SERVICE.full_name}/{method}")
        code, error = refused(lambda: call(iter(()), timeout=60))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.field == "request"
    assert server.lines("request", 1)[0]["status"] == "INVALID_ARGUMENT"


def test_a_status_that_cannot_be_sent_is_no_error_of_ours() -> None:
    async def messages() -> AsyncIterator[bytes]:
        yield b""

    async def late(_: object, __: object) -> None:
        raise DeadlineError("the deadline came before the end")

    async def call(record: CallRecord) -> None:
        log: Any = structlog.testing.CapturingLogger()
        guard = Guard(TokenBook({}), Places(4), Recorder(log))
        with pytest.raises(asyncio.CancelledError):
            await guard.serve(messages(), Going(), record, late)  # type: ignore[arg-type]

    record = CallRecord("Decode")
    asyncio.run(call(record))
    assert record.status == "DEADLINE_EXCEEDED"


class Stuck(Going):
    """The context of a call whose status is not taken before it is said so."""

    def __init__(self) -> None:
        self.taken = asyncio.Event()
        self.sent = grpc.aio.AbortError("Locally aborted.")

    async def abort(self, *_: Any) -> None:
        await self.taken.wait()
        raise self.sent


def test_the_end_of_a_call_is_told_while_its_status_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forkdecode.server.guard._ABORT_SECONDS", 0.0)
    log = Log()

    async def messages() -> AsyncIterator[bytes]:
        yield b""

    async def slow(_: object, __: object) -> None:
        raise too_slow("as scripted", "r")

    async def call() -> None:
        context = Stuck()
        guard = Guard(TokenBook({}), Places(4), Recorder(json_logger(log)))
        work = guard.serve(messages(), context, CallRecord("Decode"), slow)  # type: ignore[arg-type]
        serving = asyncio.ensure_future(work)
        while not log.lines("request"):
            await asyncio.sleep(0)
        context.taken.set()
        with pytest.raises(grpc.aio.AbortError) as caught:
            await serving
        assert caught.value is context.sent  # gRPC takes any other for a fault

    asyncio.run(call())
    [line] = log.lines("request")
    assert line["status"] == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize("method", ["Decode", "Tokenize", "Session"])
def test_a_message_that_is_too_large_is_one_line_of_the_log(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running_server(Puppet().backend(), max_request_bytes=1024) as server, server.channel() as channel:
        call = channel.stream_stream(f"/{SERVICE.full_name}/{method}")
        code, _ = refused(lambda: call(iter([bytes(2000)]), timeout=60))
        [line] = server.lines("request", 1)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert line["status"] == "CANCELLED"  # by gRPC, which has told the caller
    assert caplog.records == []


@pytest.mark.parametrize(("lost", "status"), [(True, "CANCELLED"), (False, "OK")])
def test_the_log_tells_a_lost_session_from_one_whose_client_has_no_more_to_say(
    server: Running, lost: bool, status: str
) -> None:
    with raw(server) as session:
        session.open()
        session.leave() if lost else session.half_close()
        [line] = server.lines("request", 1)
    assert (line["method"], line["status"]) == ("Session", status)


@pytest.mark.parametrize(
    ("seconds", "passed", "over"),
    [(None, 1e9, False), (1.0, 1.001, True), (1.0, 0.97, True), (60.0, 59.9, True), (60.0, 30.0, False)],
)
def test_what_is_cut_off_at_its_deadline_has_missed_it(
    seconds: float | None, passed: float, over: bool
) -> None:
    assert is_over(seconds, passed) == over
