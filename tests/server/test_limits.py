"""How much may run: of all callers together, of one caller, and of the engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from forkdecode import Beam, CapacityError, ForkdecodeError, QueueFullError, Sample
from forkdecode.errors import AuthenticationError
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.server.auth import TokenBook, read_tokens
from tests.server.calls import refused, request_of, stub_of
from tests.server.puppet import WAIT, Puppet
from tests.server.servers import Running, running_server

TOKENS = """
[[tokens]]
name = "small"
token = "small-secret"
max_requests = 2
max_row_tokens = 100
max_blocks = 60

[[tokens]]
name = "large"
token = "large-secret"
"""
SMALL = [("authorization", "Bearer small-secret")]
BURST = 2000
"""Calls of one connection, twice as many as gRPC by itself lets wait."""
LARGE = [("authorization", "Bearer large-secret")]


@pytest.fixture
def puppet() -> Puppet:
    return Puppet()


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenBook:
    path = tmp_path_factory.mktemp("auth") / "tokens.toml"
    path.write_text(TOKENS)
    return read_tokens(path)


@pytest.fixture
def server(puppet: Puppet, tokens: TokenBook) -> Iterator[Running]:
    with running_server(puppet.backend(), tokens=tokens) as running:
        yield running


def is_busy(code: grpc.StatusCode, error: ForkdecodeError) -> bool:
    """Whether the caller is told to come back later."""
    return (
        code is grpc.StatusCode.RESOURCE_EXHAUSTED
        and type(error) is QueueFullError
        and bool(error.retry_after)
    )


def test_calls_above_the_limit_are_told_when_to_come_back(puppet: Puppet) -> None:
    with running_server(puppet.backend(), max_requests=2) as server, stub_of(server) as stub:
        calls = [stub.Decode(request_of(max_tokens=4, name=name)) for name in ("first", "second")]
        jobs = [puppet.named("first"), puppet.named("second")]
        code, error = refused(lambda: stub.Decode(request_of(max_tokens=4, name="third")))
        assert is_busy(code, error)
        assert (error.field, error.limit) == ("max_requests", "2 at a time")
        assert is_busy(*refused(lambda: stub.Tokenize(pb.TokenizeRequest(prompt=pb.Prompt(text="x")))))
        assert stub.GetModel(pb.GetModelRequest()).name == "puppet"  # costs nothing
        puppet.finish(jobs[0], [5])
        server.lines("request", 4)  # the first has ended, and its place is free
        assert len(list(calls[0])) == 1
        third = stub.Decode(request_of(max_tokens=4, name="third"))
        puppet.finish(puppet.job(2), [5])
        assert len(list(third)) == 1
        calls[1].cancel()


def test_a_burst_waits_while_the_loop_is_busy(puppet: Puppet) -> None:
    go_on = threading.Event()
    with running_server(puppet.backend()) as server, stub_of(server) as stub:
        server.loop.call_soon_threadsafe(go_on.wait, WAIT)
        calls = [stub.GetModel.future(pb.GetModelRequest()) for _ in range(BURST)]
        go_on.set()
        assert {call.code() for call in calls} == {grpc.StatusCode.OK}


def test_a_full_queue_of_the_engine_is_told_alike(puppet: Puppet) -> None:
    puppet.refuses = QueueFullError("7 requests are waiting, which is the limit", retry_after=1.5)
    with running_server(puppet.backend()) as server, stub_of(server) as stub:
        code, error = refused(lambda: stub.Decode(request_of(max_tokens=4, name="mine")))
    assert is_busy(code, error)
    assert (error.retry_after, error.request_id) == (1.5, "mine")


def test_a_callers_requests_are_bounded(server: Running, puppet: Puppet) -> None:
    with stub_of(server) as stub:
        calls = [stub.Decode(request_of(max_tokens=4), metadata=SMALL) for _ in range(2)]
        puppet.job(1)
        code, error = refused(lambda: stub.Decode(request_of(max_tokens=4), metadata=SMALL))
        assert is_busy(code, error)
        assert error.field == "max_requests"
        other = stub.Decode(request_of(max_tokens=4), metadata=LARGE)
        puppet.finish(puppet.job(2), [5])
        assert len(list(other)) == 1
        for call in calls:
            call.cancel()
        puppet.await_cancel(2)


@pytest.mark.parametrize(
    ("field", "first", "second"),
    [
        # 1 prompt token: width * (1 + max_tokens) row tokens
        ("max_row_tokens", Sample(n=4, seed=1), 14),
        # ceil(1/4) + width * (ceil((max_tokens + 1) / 4) + 1) blocks
        ("max_blocks", Beam(width=16), 2),
    ],
)
def test_what_a_callers_requests_may_take_is_bounded(
    server: Running, puppet: Puppet, field: str, first: Sample | Beam, second: int
) -> None:
    with stub_of(server) as stub:
        running = stub.Decode(request_of(first, max_tokens=second), metadata=SMALL)
        puppet.job(0)
        code, error = refused(lambda: stub.Decode(request_of(first, max_tokens=second), metadata=SMALL))
        assert is_busy(code, error)
        assert error.field == field
        code, error = refused(lambda: stub.Decode(request_of(Beam(width=60), max_tokens=2), metadata=SMALL))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert type(error) is CapacityError  # never, whatever else runs
        assert error.retry_after is None
        running.cancel()
        puppet.await_cancel()
        server.lines("request", 3)
        again = stub.Decode(request_of(first, max_tokens=second), metadata=SMALL)
        puppet.finish(puppet.job(1), [5])
        assert len(list(again)) == 1


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [("authorization", "Bearer wrong-secret")],
        [("authorization", "small-secret")],
        [("authorization", "Basic small-secret")],
        [("authorization", "Bearer ")],
        [*SMALL, *LARGE],
    ],
)
@pytest.mark.parametrize("method", ["Decode", "Score", "Tokenize", "Detokenize", "GetModel", "GetStats"])
def test_who_is_unknown_learns_nothing(server: Running, method: str, metadata: list[tuple[str, str]]) -> None:
    with server.channel() as channel:
        call = channel.unary_stream(f"/forkdecode.rpc.v1.DecodeService/{method}")
        code, error = refused(lambda: call(b"", metadata=metadata))
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert type(error) is AuthenticationError
    assert "secret" not in str(error)


def test_logs_name_the_caller(server: Running) -> None:
    with stub_of(server) as stub:
        stub.GetModel(pb.GetModelRequest(), metadata=LARGE)
        refused(lambda: stub.GetModel(pb.GetModelRequest()))
    known, unknown = server.lines("request", 2)
    assert (known["caller"], known["status"]) == ("large", "OK")
    assert (unknown["caller"], unknown["status"]) == ("", "UNAUTHENTICATED")
    assert "secret" not in server.log.getvalue()


def test_no_file_no_tokens() -> None:
    with pytest.raises(ForkdecodeError, match="can't be read"):
        read_tokens(Path("/nowhere/tokens.toml"))
