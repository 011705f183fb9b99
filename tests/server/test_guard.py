"""How calls end, whatever gRPC makes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
import structlog

from forkdecode.errors import DeadlineError
from forkdecode.server.auth import TokenBook
from forkdecode.server.guard import Guard
from forkdecode.server.record import CallRecord, Recorder
from forkdecode.server.running import Running
from tests.server.calls import refused, request_of, stub_of
from tests.server.puppet import Puppet
from tests.server.servers import running_server


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


def test_a_refusal_is_no_fault_to_grpc(caplog: pytest.LogCaptureFixture) -> None:
    wrong = request_of(max_tokens=1)
    wrong.options.max_tokens = 0
    with running_server(Puppet().backend()) as server, stub_of(server) as stub:
        refused(lambda: stub.Decode(wrong))
    assert [r.getMessage() for r in caplog.records if r.name.startswith("grpc")] == []


def test_a_status_that_cannot_be_sent_is_no_error_of_ours() -> None:
    async def late(_: object) -> None:
        raise DeadlineError("the deadline came before the end")

    async def call(record: CallRecord) -> None:
        log: Any = structlog.testing.CapturingLogger()
        guard = Guard(TokenBook({}), Running(4), Recorder(log))
        with pytest.raises(grpc.aio.AbortError):
            await guard.serve(Going(), record, late)  # type: ignore[arg-type]

    record = CallRecord("Decode")
    asyncio.run(call(record))
    assert record.status == "DEADLINE_EXCEEDED"
