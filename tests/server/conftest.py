"""A server of a tiny model and a stub for it, a pair for each file of tests that asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forkdecode import LLM
from forkdecode.rpc.v1.decode_pb2_grpc import DecodeServiceStub
from tests.llm.models import assert_idle
from tests.server.servers import Running, running_server, tiny_llm


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with tiny_llm() as found:
        yield found
        assert_idle(found)


@pytest.fixture(scope="module")
def server(llm: LLM) -> Iterator[Running]:
    with running_server(llm) as running:
        yield running


@pytest.fixture(scope="module")
def stub(server: Running) -> Iterator[DecodeServiceStub]:
    with server.channel() as channel:
        yield DecodeServiceStub(channel)
