"""Calls of tests: requests, what comes back, how they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from forkdecode import Event, Options, Sample, Strategy
from forkdecode.errors import ForkdecodeError
from forkdecode.rpc.convert_events import Events
from forkdecode.rpc.convert_requests import DecodeCall, decode_request
from forkdecode.rpc.status import error_of
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.rpc.v1.decode_pb2_grpc import DecodeServiceStub
from tests.server.servers import Running

LONG = 10_000
"""Tokens of a request that does not end by itself while a test runs."""


def request_of(
    strategy: Strategy | None = None,
    *,
    prompt: Any = "hello",
    name: str | None = None,
    stream: bool = True,
    **options: Any,
) -> pb.DecodeRequest:
    """A request, by default for one sample, that is streamed."""
    chosen = Sample(seed=1) if strategy is None else strategy
    return decode_request(DecodeCall(prompt, chosen, Options(**options), name, stream))


def remote_events(
    stub: DecodeServiceStub, strategy: Strategy, request: pb.DecodeRequest, **how: Any
) -> list[Event]:
    """All events of one call."""
    events = Events(strategy)
    return [event for message in stub.Decode(request, **how) for event in events.of(message)]


@contextmanager
def stub_of(server: Running, **options: int) -> Iterator[DecodeServiceStub]:
    """A channel of one's own."""
    with server.channel(**options) as channel:
        yield DecodeServiceStub(channel)


def refused(call: Callable[[], Any]) -> tuple[grpc.StatusCode, ForkdecodeError]:
    """The status and the error that a call ends with."""

    def read() -> None:
        found = call()
        if hasattr(found, "__next__"):
            list(found)

    with pytest.raises(grpc.RpcError) as caught:
        read()
    return caught.value.code(), error_of(caught.value)
