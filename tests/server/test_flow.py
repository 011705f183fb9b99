"""Readers that are slow, or don't read: nothing is lost, nobody else waits, nothing grows without bound."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

import grpc
import pytest

from forkdecode import CancelledError, CapacityError, EngineClosedError, Sample
from forkdecode.engine.port import Job
from forkdecode.rpc.status import error_of
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.server.settings import ServerSettings
from tests.server.calls import LONG, refused, request_of, stub_of
from tests.server.puppet import WAIT, Puppet
from tests.server.servers import Running, running_server

SMALL_WINDOW = {"http2.bdp_probe": 0}
"""A client whose connection takes 64 KiB that nobody has read."""


@pytest.fixture
def puppet() -> Puppet:
    return Puppet()


@pytest.fixture
def server(puppet: Puppet) -> Iterator[Running]:
    with running_server(puppet.backend()) as running:
        yield running


def test_one_message_a_step_while_its_reader_keeps_up(server: Running, puppet: Puppet) -> None:
    with stub_of(server) as stub:
        messages = stub.Decode(request_of(Sample(n=2, seed=1), max_tokens=3, name="mine"))
        job = puppet.job(0)
        puppet.start(job)
        puppet.step(job, [5, 6])
        first = next(messages)
        assert first.request_id == "mine"
        assert first.HasField("started")
        assert [list(delta.token_ids) for delta in first.deltas] == [[5], [6]]
        for token in (7, 8):
            puppet.step(job, [token, token])
            message = next(messages)
            assert message.request_id == ""
            assert [list(delta.token_ids) for delta in message.deltas] == [[token], [token]]
        puppet.finish(job, [5, 7, 8], [6, 7, 8])
        last = next(messages)
        assert [list(c.token_ids) for c in last.finished.candidates] == [[5, 7, 8], [6, 7, 8]]
        assert list(messages) == []


def test_a_slow_reader_gets_every_token_in_fewer_messages_and_slows_nobody(
    server: Running, puppet: Puppet
) -> None:
    steps, width = 4000, 16
    with stub_of(server, **SMALL_WINDOW) as slow_stub, stub_of(server) as stub:
        slow = slow_stub.Decode(request_of(Sample(n=width, seed=1), max_tokens=LONG))
        slow_job = puppet.job(0)
        quick = stub.Decode(request_of(max_tokens=LONG))
        quick_job = puppet.job(1)
        tokens = list(itertools.islice(itertools.cycle(range(5, 200)), steps))
        for number, token in enumerate(tokens):
            puppet.step(slow_job, [token] * width)
            if number % 100 == 0:  # the other reader is served while the slow one is not
                puppet.step(quick_job, [token])
                assert list(next(quick).deltas[0].token_ids) == [token]
        puppet.finish(slow_job, *([tokens] * width))
        messages = list(slow)
        quick.cancel()
    assert len(messages) < steps / 2
    got: dict[int, list[int]] = {}
    for message in messages:
        for delta in message.deltas:
            got.setdefault(delta.candidate, []).extend(delta.token_ids)
    assert got == dict.fromkeys(range(width), tokens)
    assert len(messages[-1].finished.candidates) == width


def test_a_reader_that_takes_nothing_is_ended_with_a_clear_status(puppet: Puppet) -> None:
    with (
        running_server(puppet.backend(), stall_timeout=0.2) as server,
        stub_of(server, **SMALL_WINDOW) as stub,
    ):
        messages = stub.Decode(request_of(Sample(n=500, seed=1), max_tokens=LONG, name="stuck"))
        job = puppet.job(0)
        for token in range(5, 205):
            puppet.step(job, [token] * 500)
        puppet.await_cancel()
        code, error = refused(lambda: messages)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert type(error) is CapacityError
        assert "the reader is too slow" in str(error)
        assert error.request_id == "stuck"
        [line] = server.lines("request", 1)
    assert line["status"] == "RESOURCE_EXHAUSTED"


def test_a_steady_reader_of_small_messages_has_time_for_half_a_window() -> None:
    window, message, pace = 65_536, 64, 1.0  # bytes that HTTP/2 begins with, bytes, seconds
    assert ServerSettings().stall_timeout > window / 2 / message * pace


def test_events_that_wait_are_bounded(
    puppet: Puppet, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkdecode.server.stream.MAX_PENDING_BYTES", 2**20)
    with stub_of(server, **SMALL_WINDOW) as stub:
        messages = stub.Decode(request_of(Sample(n=500, seed=1), max_tokens=LONG))
        job = puppet.job(0)
        for token in range(5, 205):
            puppet.step(job, [token] * 500)
        code, error = refused(lambda: messages)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "MiB of its events wait" in str(error)
    assert puppet.cancelled == [job.request.request_id]


def test_what_came_before_an_error_is_sent_before_it(server: Running, puppet: Puppet) -> None:
    with stub_of(server) as stub:
        messages = stub.Decode(request_of(max_tokens=5))
        job = puppet.job(0)
        puppet.step(job, [5])
        puppet.fail(job, EngineClosedError("the engine died", retry_after=2.5))
        assert list(next(messages).deltas[0].token_ids) == [5]
        code, error = refused(lambda: messages)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert type(error) is EngineClosedError
    assert error.retry_after == 2.5
    assert error.request_id == job.request.request_id
    assert not puppet.cancelled


@pytest.mark.parametrize("stream", [True, False])
def test_a_cancelled_call_ends_its_request(server: Running, puppet: Puppet, stream: bool) -> None:
    with stub_of(server) as stub:
        messages = stub.Decode(request_of(max_tokens=5, stream=stream))
        job = puppet.job(0)
        messages.cancel()
        puppet.await_cancel()
        assert puppet.cancelled == [job.request.request_id]
        with pytest.raises(grpc.RpcError) as caught:
            next(messages)
    assert type(error_of(caught.value)) is CancelledError


@pytest.mark.parametrize("method", ["Decode", "Score"])
def test_a_deadline_ends_its_request(server: Running, puppet: Puppet, method: str) -> None:
    with stub_of(server) as stub:
        if method == "Decode":
            code, _ = refused(lambda: stub.Decode(request_of(max_tokens=5), timeout=0.3))
        else:
            prompt, rest = pb.Prompt(text="hello"), [pb.Continuation(text=" world")]
            request = pb.ScoreRequest(prompt=prompt, continuations=rest)
            code, _ = refused(lambda: stub.Score(request, timeout=0.3))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    puppet.await_cancel()


def test_a_closed_connection_ends_its_requests(server: Running, puppet: Puppet) -> None:
    with stub_of(server) as stub:
        calls = [stub.Decode(request_of(max_tokens=5)) for _ in range(3)]
        puppet.job(2)
    assert len(calls) == 3
    puppet.await_cancel(3)


def test_a_large_request_that_is_cancelled_while_it_is_handed_over_is_cancelled(
    server: Running, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, entered, go_on = puppet.submit, threading.Event(), threading.Event()

    def slowly(jobs: Sequence[Job]) -> None:
        entered.set()
        assert go_on.wait(WAIT)
        submit(jobs)

    monkeypatch.setattr(puppet, "submit", slowly)
    with stub_of(server) as stub:
        call = stub.Decode(request_of(prompt=[5] * 70_000, max_tokens=5))
        assert entered.wait(WAIT)
        call.cancel()
        server.lines("request", 1)
        go_on.set()
        puppet.await_cancel()
    assert server.lines("request", 1)[0]["status"] == "CANCELLED"


KILLED = """
import sys
import grpc
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.rpc.v1.decode_pb2_grpc import DecodeServiceStub
request = pb.DecodeRequest(prompt=pb.Prompt(text="hello"), sample=pb.Sample(n=1), stream=True)
calls = DecodeServiceStub(grpc.insecure_channel(sys.argv[1])).Decode(request)
next(calls)
print("reading", flush=True)
next(calls)
"""


def test_a_client_that_is_killed_ends_its_requests(server: Running, puppet: Puppet) -> None:
    client = subprocess.Popen([sys.executable, "-c", KILLED, server.address], stdout=subprocess.PIPE)
    try:
        puppet.step(puppet.job(0), [5])
        assert client.stdout is not None
        assert client.stdout.readline() == b"reading\n"
    finally:
        client.kill()
        client.communicate()
    puppet.await_cancel()
    assert server.lines("request", 1)[0]["status"] == "CANCELLED"
