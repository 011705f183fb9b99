"""What a client makes of a server's limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from forkdecode import CapacityError, Client, DeadlineError, QueueFullError
from forkdecode.client import attempts
from forkdecode.client.attempts import Attempts
from forkdecode.rpc.status import status_of
from forkdecode.rpc.v1 import decode_pb2 as pb
from tests.client.scripted import FINISHED, STARTED, scripted
from tests.server.puppet import Puppet
from tests.server.servers import running_server

FULL = QueueFullError("full", retry_after=0.001)


@pytest.mark.parametrize("verb", ["decode", "tokenize"])
def test_a_request_that_is_too_large_is_named(verb: str) -> None:
    with (
        running_server(Puppet().backend(), max_request_bytes=2048) as server,
        Client(server.address) as client,
    ):
        with pytest.raises(CapacityError, match=r"^request: it has 4\d+ bytes") as caught:
            getattr(client, verb)("x" * 4096)
        assert type(caught.value) is CapacityError
        assert (caught.value.field, caught.value.limit) == ("request", "at most 2048 bytes")


@pytest.mark.parametrize("verb", ["decode", "decode_many", "score"])
def test_a_list_longer_than_the_server_takes_at_a_time(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of a list wait for their turn, however often that is."""
    monkeypatch.setattr(attempts, "FIRST_DELAY", 0.001)
    refused: list[str] = []
    has_room = asyncio.Event()

    async def act(request: Any, context: Any) -> AsyncIterator[pb.DecodeEvent]:
        if request.request_id == "a":
            await has_room.wait()
        elif len(refused) < 8:
            refused.append(request.request_id)
            await context.abort(*status_of(FULL))
        has_room.set()
        yield FINISHED

    with scripted(act) as script, Client(script.address, retries=1) as client:
        more: Any = {"continuations": ["x"]} if verb == "score" else {}
        found = list(getattr(client, verb)(["x", "y"], request_id=["a", "b"], **more))
        if verb == "score":
            assert [result.request_id for result in found] == ["a", "b"]
        else:
            assert [result.text for result in found] == ["a", "a"]
    assert refused == ["b"] * 8


@pytest.mark.parametrize("many", [False, True])
def test_a_list_takes_a_few_calls_for_each_of_its_requests(many: bool) -> None:
    """Each is refused once, and has its turn when another has ended: nobody asks now and then, which the
    server would have for an hour."""
    count, running = 60, 0

    async def act(request: Any, context: Any) -> AsyncIterator[pb.DecodeEvent]:
        nonlocal running
        if running == 2:
            await context.abort(*status_of(QueueFullError("full", retry_after=3600)))
        running += 1
        await asyncio.sleep(0)  # others come meanwhile
        yield FINISHED
        running -= 1

    with scripted(act) as script, Client(script.address) as client:
        if many:
            found = list(client.decode_many(["x"] * count, concurrency=count))
        else:
            found = client.decode(["x"] * count)
        assert len(found) == count
        assert len(script.requests) <= 2 * count


def test_the_first_error_of_a_list_ends_the_others() -> None:
    waits = asyncio.Event()

    async def act(request: Any, context: Any) -> AsyncIterator[pb.DecodeEvent]:
        if request.request_id == "a":
            waits.set()
            await asyncio.Event().wait()
        await waits.wait()
        await context.abort(*status_of(CapacityError("too long", field="prompt")))
        yield FINISHED

    with scripted(act) as script, Client(script.address) as client:
        with pytest.raises(CapacityError, match="too long") as caught:
            client.score(["x", "y"], ["z"], request_id=["a", "b"])
        assert caught.value.request_id == "b"
        assert script.cancelled.wait(30)


@pytest.mark.parametrize("many", [False, True])
def test_a_list_gives_up_on_a_server_that_is_full_with_others_requests(
    many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "FIRST_DELAY", 0.001)
    count, retries = 40, 3

    async def act(request: Any, context: Any) -> AsyncIterator[pb.DecodeEvent]:
        await context.abort(*status_of(FULL))
        yield FINISHED

    with scripted(act) as script, Client(script.address, retries=retries) as client:
        if many:
            errors = list(client.decode_many(["x"] * count, concurrency=count, return_errors=True))
            assert [type(error) for error in errors] == [QueueFullError] * count
        else:
            with pytest.raises(QueueFullError):
                client.decode(["x"] * count)
        assert len(script.requests) <= 2 * count


def test_a_request_in_line_ends_with_its_timeout() -> None:
    async def act(request: Any, context: Any) -> AsyncIterator[pb.DecodeEvent]:
        if request.request_id == "a":
            yield STARTED
            await asyncio.Event().wait()
        await context.abort(*status_of(FULL))

    with scripted(act) as script, Client(script.address) as client, client.stream("x", request_id="a") as a:
        next(a)
        with pytest.raises((QueueFullError, DeadlineError)):
            client.decode(["x"] * 3, timeout=0.05)


def test_who_is_alone_gives_up_on_a_full_server() -> None:
    tries = Attempts(1, None)
    assert all(tries.delay(FULL, others_run=True) is not None for _ in range(9))
    assert tries.delay(QueueFullError("never"), others_run=True) is None
    assert tries.delay(FULL) is not None
    assert tries.delay(FULL) is None
    assert Attempts(1, 0.0005).delay(FULL, others_run=True) is None
