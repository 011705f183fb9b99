"""What a client makes of a server's limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from forkdecode import CapacityError, Client, QueueFullError
from forkdecode.client import attempts
from forkdecode.client.attempts import Attempts
from forkdecode.rpc.status import status_of
from forkdecode.rpc.v1 import decode_pb2 as pb
from tests.client.scripted import FINISHED, scripted
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


@pytest.mark.parametrize("many", [False, True])
def test_a_list_longer_than_the_server_takes_at_a_time(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
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
        if many:
            found = list(client.decode_many(["x", "y"], request_id=["a", "b"]))
        else:
            found = client.decode(["x", "y"], request_id=["a", "b"])
        assert [result.text for result in found] == ["a", "a"]
    assert refused == ["b"] * 8


def test_who_is_alone_gives_up_on_a_full_server() -> None:
    tries, siblings = Attempts(1, None), attempts.Siblings()
    with siblings.running():
        assert all(tries.delay(FULL, siblings.any_runs) is not None for _ in range(9))
        assert tries.delay(QueueFullError("never"), siblings.any_runs) is None
    assert tries.delay(FULL, siblings.any_runs) is not None
    assert tries.delay(FULL, siblings.any_runs) is None
    late = Attempts(1, 0.0005)
    with siblings.running():
        assert late.delay(FULL, siblings.any_runs) is None
