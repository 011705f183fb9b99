from __future__ import annotations

from collections.abc import Iterator

import pytest

from forkdecode import LLM, Client
from tests.llm.models import settle
from tests.server.servers import Running, running_server, tiny_llm


@pytest.fixture(scope="package")
def engine() -> Iterator[LLM]:
    with tiny_llm() as llm:
        yield llm


@pytest.fixture(scope="package")
def server(engine: LLM) -> Iterator[Running]:
    """One real server before the engine that `llm` is, too."""
    with running_server(engine) as running:
        yield running


@pytest.fixture(scope="package")
def shared_client(server: Running) -> Iterator[Client]:
    with Client(server.address, timeout=120) as client:
        yield client


@pytest.fixture
def llm(engine: LLM) -> Iterator[LLM]:
    """In process; each test must leave it idle."""
    yield engine
    settle(engine)


@pytest.fixture
def client(shared_client: Client, llm: LLM) -> Iterator[Client]:
    """By the server, the same engine."""
    yield shared_client
    shared_client.decode("a", max_tokens=1)  # behind what the test sent and gave up
