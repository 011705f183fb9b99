"""Retries: only while nothing has come, only for what passes, never past the timeout."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from forkdecode import (
    CancelledError,
    CapacityError,
    Client,
    DeadlineError,
    EngineClosedError,
    ForkdecodeError,
    GroupFailedError,
    InvalidRequestError,
    QueueFullError,
    Started,
    UnavailableError,
)
from forkdecode.client import attempts, transport
from forkdecode.client.attempts import Attempts
from forkdecode.rpc.v1 import decode_pb2 as pb
from tests.client.scripted import FINISHED, STARTED, Act, fails, hangs, scripted, sends, silent, status

DOWN = fails(EngineClosedError("the engine died", retry_after=0.01))
HELD = fails(InvalidRequestError("request_id: 'r' is in use", field="request_id"))


@pytest.mark.parametrize(
    "trouble",
    [
        fails(UnavailableError("loading", retry_after=0.01)),
        fails(UnavailableError("draining")),
        fails(QueueFullError("full", retry_after=0.01)),
        status(grpc.StatusCode.UNAVAILABLE),
        status(grpc.StatusCode.CANCELLED),
        sends(),
    ],
)
def test_what_passes_is_tried_again(trouble: Act) -> None:
    with scripted(trouble, trouble, sends(FINISHED)) as script, Client(script.address) as client:
        assert client.decode("a", request_id="r").text == "a"
        assert len(script.requests) == 3
        assert {request.request_id for request in script.requests} == {"r"}


def test_unary_calls_are_tried_again() -> None:
    with scripted(DOWN, sends(STARTED)) as script, Client(script.address) as client:
        assert client.stats().steps == 7
        assert len(script.requests) == 2


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            InvalidRequestError("max_tokens: too many", field="max_tokens", limit="1 to 9"),
            InvalidRequestError,
        ),
        (CapacityError("too big"), CapacityError),
        (QueueFullError("full"), QueueFullError),
        (GroupFailedError("broke"), GroupFailedError),
        (CancelledError("gone"), CancelledError),
        (InvalidRequestError("request_id: in use", field="request_id"), InvalidRequestError),
    ],
)
def test_what_stays_is_not(error: ForkdecodeError, kind: type[ForkdecodeError]) -> None:
    with scripted(fails(error)) as script, Client(script.address) as client:
        with pytest.raises(kind) as caught:
            client.decode("a", request_id="mine")
        assert len(script.requests) == 1
        assert type(caught.value) is kind
        assert (caught.value.field, caught.value.limit) == (error.field, error.limit)
        assert caught.value.request_id == "mine"


@pytest.mark.parametrize("trouble", [fails(EngineClosedError("died"), after=[STARTED]), sends(STARTED)])
def test_nothing_is_tried_again_after_an_event(trouble: Act) -> None:
    with scripted(trouble, sends(FINISHED)) as script, Client(script.address) as client:
        stream = client.stream("a")
        assert isinstance(next(stream), Started)
        with pytest.raises(UnavailableError):
            next(stream)
        assert len(script.requests) == 1


def test_they_come_to_an_end() -> None:
    loading = fails(UnavailableError("the model is loading", retry_after=0.01))
    with scripted(loading) as script, Client(script.address, retries=2) as client:
        with pytest.raises(UnavailableError, match="the model is loading"):
            client.decode("a")
        assert len(script.requests) == 3
    with scripted(DOWN) as script, Client(script.address, retries=0) as client:
        with pytest.raises(EngineClosedError):
            client.decode("a")
        assert len(script.requests) == 1


def test_a_request_under_which_two_engines_ended_is_not_sent_to_a_third() -> None:
    loading = fails(UnavailableError("the model is loading", retry_after=0.01))
    with scripted(DOWN, loading, DOWN, sends(FINISHED)) as script, Client(script.address) as client:
        with pytest.raises(EngineClosedError, match="the engine died"):
            client.decode("a")
        assert len(script.requests) == 3


def test_one_that_was_beside_it_is() -> None:
    with scripted(DOWN, sends(FINISHED)) as script, Client(script.address) as client:
        assert client.decode("a").text == "a"
        assert len(script.requests) == 2


def test_an_id_that_the_lost_attempt_still_holds() -> None:
    with scripted(DOWN, HELD, sends(FINISHED)) as script, Client(script.address) as client:
        assert client.decode("a", request_id="r").request_id == "r"
        assert len(script.requests) == 3


@pytest.mark.parametrize("method", ["decode", "score"])
def test_an_id_that_the_caller_did_not_choose_is_another_after_a_loss(method: str) -> None:
    dropped = status(grpc.StatusCode.UNAVAILABLE)
    full = fails(QueueFullError("full", retry_after=0.01))
    with scripted(full, dropped, dropped, sends(FINISHED)) as script, Client(script.address) as client:
        if method == "decode":
            handle = client.submit("a")
            assert handle.result().request_id == handle.request_id
            name = handle.request_id
        else:
            name = client.score("a", ["b"]).request_id
        assert [one.request_id for one in script.requests] == [name, name, f"{name}-2", f"{name}-3"]


def test_an_error_after_a_loss_names_the_request_as_its_caller_knows_it() -> None:
    wrong = fails(InvalidRequestError("prompt: too long", field="prompt", request_id="another"))
    with scripted(status(grpc.StatusCode.UNAVAILABLE), wrong) as script, Client(script.address) as client:
        handle = client.submit("a")
        with pytest.raises(InvalidRequestError, match="too long") as caught:
            handle.result()
        assert caught.value.request_id == handle.request_id


@pytest.mark.parametrize("method", ["decode", "score"])
def test_an_id_that_stays_held_is_told_as_the_loss_that_it_comes_of(method: str) -> None:
    lost = status(grpc.StatusCode.UNAVAILABLE, "Connection reset by peer")
    with scripted(lost, HELD) as script, Client(script.address, retries=2) as client:
        arguments: tuple[Any, ...] = ("a",) if method == "decode" else ("a", ["b"])
        with pytest.raises(UnavailableError, match=r"reset by peer.* still holds") as caught:
            getattr(client, method)(*arguments, request_id="mine")
        assert caught.value.request_id == "mine"
        assert [one.request_id for one in script.requests] == ["mine"] * 3


def test_none_is_made_that_would_come_too_late() -> None:
    later = fails(UnavailableError("come back in an hour", retry_after=3600))
    with scripted(later) as script, Client(script.address, timeout=60) as client:
        with pytest.raises(UnavailableError, match="in an hour"):
            client.decode("a")
        assert len(script.requests) == 1


def test_attempts_share_the_timeout() -> None:
    soon = fails(UnavailableError("starting", retry_after=0.2))
    with scripted(soon, sends(FINISHED)) as script, Client(script.address, timeout=600) as client:
        client.decode("a", timeout=5)
        first, second = script.seconds_left
        assert first is not None
        assert second is not None
        assert second + 0.1 < first <= 5.1


def test_a_timeout_ends_the_call_at_the_server_too() -> None:
    with scripted(hangs) as script, Client(script.address) as client:
        stream = client.stream("a", timeout=0.3)
        assert isinstance(next(stream), Started)
        with pytest.raises(TimeoutError, match=r"not done after 0.3 s") as caught:
            next(stream)
        assert isinstance(caught.value, DeadlineError)
        assert caught.value.field == "timeout"
        assert caught.value.request_id
        assert script.cancelled.wait(60)


def test_a_call_whose_result_is_there_ends_by_itself() -> None:
    go_on, ended = threading.Event(), threading.Event()

    async def lingers(request: Any, context: Any) -> AsyncIterator[pb.DecodeEvent]:
        yield FINISHED
        await asyncio.to_thread(go_on.wait)
        ended.set()

    with scripted(lingers, sends(FINISHED)) as script, Client(script.address) as client:
        assert client.decode("a").text == "a"
        assert client.decode("b").text == "a"  # by the same connection, after whatever was sent for the first
        go_on.set()
        assert ended.wait(60)
        assert not script.cancelled.is_set()


def test_a_call_that_does_not_end_after_its_result_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_STATUS_SECONDS", 0.01)

    async def stays(request: Any, context: Any) -> AsyncIterator[pb.DecodeEvent]:
        yield FINISHED
        await asyncio.Event().wait()

    with scripted(stays) as script, Client(script.address) as client:
        assert client.decode("a").text == "a"
        assert script.cancelled.wait(60)


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_giving_up_reaches_the_server(how: str) -> None:
    with scripted(silent) as script, Client(script.address) as client:
        handle = client.submit("a")
        assert script.arrived.wait(60)
        if how == "cancel":
            handle.cancel()
        else:
            client.close()
        with pytest.raises(CancelledError if how == "cancel" else EngineClosedError):
            handle.result(60)
        assert script.cancelled.wait(60)


def test_delays_double_and_obey_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts.random, "random", lambda: 1.0)
    tries = Attempts(20, None)
    error = UnavailableError("x")
    delays = [tries.delay(error) for _ in range(20)]
    assert delays[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert delays[-1] == attempts.MAX_DELAY
    assert tries.delay(error) is None
    assert Attempts(1, None).delay(UnavailableError("x", retry_after=7)) == pytest.approx(8.4)
    monkeypatch.setattr(attempts.random, "random", lambda: 0.0)
    assert Attempts(1, None).delay(UnavailableError("x", retry_after=7)) == 7
    assert Attempts(1, None).delay(error) == pytest.approx(0.05)


def test_an_answer_that_makes_no_sense_is_an_error() -> None:
    nonsense = FINISHED.__class__.FromString(FINISHED.SerializeToString())
    nonsense.finished.candidates[0].finish_reason = 77  # type: ignore[assignment]
    with (
        scripted(sends(nonsense)) as script,
        Client(script.address) as client,
        pytest.raises(ForkdecodeError, match="finish_reason 77 is unknown"),
    ):
        client.decode("a")
