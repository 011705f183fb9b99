"""The engine's state as health tells it, and what becomes of requests when it changes."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from forkdecode import EngineClosedError, UnavailableError
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.server.auth import Caller, TokenBook
from tests.server.calls import refused, request_of, stub_of
from tests.server.puppet import Puppet
from tests.server.servers import Running, running_server

SERVICE = "forkdecode.rpc.v1.DecodeService"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def puppet() -> Puppet:
    return Puppet()


@pytest.fixture
def server(puppet: Puppet) -> Iterator[Running]:
    with running_server(puppet.backend()) as running:
        yield running


def watch(server: Running, service: str) -> Iterator[int]:
    """Health as it changes."""
    stub = health_pb2_grpc.HealthStub(server.channel())
    for answer in stub.Watch(health_pb2.HealthCheckRequest(service=service), timeout=60):
        yield answer.status


@pytest.mark.parametrize("service", ["", SERVICE])
def test_health_follows_the_engine(server: Running, puppet: Puppet, service: str) -> None:
    health = watch(server, service)
    seen = next(health)
    while seen != SERVING:  # the first state is told beside the server's start
        seen = next(health)
    puppet.become("down")
    assert next(health) == NOT_SERVING
    puppet.become("starting")
    puppet.become("serving")
    assert next(health) == SERVING
    assert [line["state"] for line in server.lines("engine", 4)] == ["serving", "down", "starting", "serving"]


def test_health_needs_no_token(puppet: Puppet) -> None:
    tokens = TokenBook({b"x" * 32: Caller("somebody")})
    with running_server(puppet.backend(), tokens=tokens) as server:
        assert next(watch(server, "")) in (SERVING, NOT_SERVING)


def test_a_dead_engine_ends_requests_with_a_hint(server: Running, puppet: Puppet) -> None:
    with stub_of(server) as stub:
        calls = [stub.Decode(request_of(max_tokens=4, stream=i > 0)) for i in range(3)]
        jobs = [puppet.job(i) for i in range(3)]
        puppet.step(jobs[1], [5])
        puppet.become("down")
        for job in jobs:
            puppet.fail(job, EngineClosedError("the engine process died", retry_after=1.0))
        for call in calls:
            code, error = refused(lambda call=call: call)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert type(error) is EngineClosedError
            assert error.retry_after == 1.0
        puppet.refuses = UnavailableError("the engine process is starting", retry_after=3.0)
        puppet.is_down = True
        for call in (
            lambda: stub.Decode(request_of(max_tokens=4)),
            lambda: stub.GetStats(pb.GetStatsRequest()),
        ):
            code, error = refused(call)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert type(error) is UnavailableError
            assert error.retry_after
        assert stub.GetModel(pb.GetModelRequest()).name == "puppet"
        puppet.refuses = None
        again = stub.Decode(request_of(max_tokens=4))
        puppet.finish(puppet.job(3), [5])
        assert len(list(again)) == 1


def test_draining_lets_requests_finish_and_takes_no_more(server: Running, puppet: Puppet) -> None:
    health = watch(server, "")
    while next(health) != SERVING:
        pass
    with stub_of(server) as stub:
        running = stub.Decode(request_of(max_tokens=4))
        job = puppet.job(0)
        drained = server.begin(server.server.drain(60))
        assert next(health) == NOT_SERVING
        code, error = refused(lambda: stub.Decode(request_of(max_tokens=4)))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert error.retry_after
        assert not drained.done()
        puppet.finish(job, [5])
        assert len(list(running)) == 1
        drained.result(60)
    assert not puppet.cancelled


def test_what_does_not_finish_in_time_is_ended(server: Running, puppet: Puppet) -> None:
    with stub_of(server) as stub:
        calls = {name: stub.Decode(request_of(max_tokens=4, name=name)) for name in ("a", "b", "c")}
        puppet.step(puppet.named("a"), [5])
        assert list(next(calls["a"]).deltas[0].token_ids) == [5]
        puppet.job(2)
        server.begin(server.server.drain(0.0)).result(60)
        for name, call in calls.items():
            code, error = refused(lambda call=call: call)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert "shut down before the request finished" in str(error)
            assert error.retry_after
            assert error.request_id == name
    assert sorted(puppet.cancelled) == sorted(calls)
    assert server.lines("grace_over", 1)[0]["ended"] == 3


def test_an_error_that_nobody_expected_tells_nothing_and_logs_no_prompt(
    server: Running, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choke(jobs: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(puppet, "submit", choke)
    with stub_of(server) as stub:
        code, error = refused(lambda: stub.Decode(request_of(prompt="hello secret", max_tokens=4)))
        assert code is grpc.StatusCode.INTERNAL
        assert "broken" not in str(error)
    assert server.lines("call_broke", 1)[0]["exception"][0]["exc_value"] == "broken"
    assert server.lines("request", 1)[0]["status"] == "INTERNAL"
    assert "secret" not in server.log.getvalue()


def test_prompts_are_logged_where_that_is_asked_for(puppet: Puppet) -> None:
    for asked in (False, True):
        with running_server(puppet.backend(), log_prompts=asked) as server, stub_of(server) as stub:
            call = stub.Decode(request_of(prompt="hello secret", max_tokens=4, name=f"r{asked:d}"))
            puppet.finish(puppet.job(int(asked)), [5])
            list(call)
            [line] = server.lines("request", 1)
        assert ("secret" in server.log.getvalue()) == asked
        assert (line["request_id"], line["strategy"]) == (f"r{asked:d}", "sample")
        assert (line["prompt_tokens"], line["generated_tokens"]) == (len(puppet.job(0).request.prompt), 1)
