from __future__ import annotations

from collections.abc import Iterator

import pytest

from forkdecode import LLM, Client
from tests.llm.models import settle
from tests.matrix.constraint_rows import catalogues
from tests.matrix.rows import Decoder
from tests.server.servers import running_server, tiny_llm


@pytest.fixture(scope="package")
def engine() -> Iterator[LLM]:
    with tiny_llm(catalogues=catalogues()) as llm:
        yield llm


@pytest.fixture(scope="package")
def client(engine: LLM) -> Iterator[Client]:
    with running_server(engine) as server, Client(server.address, timeout=120) as client:
        yield client


@pytest.fixture(params=["in process", "gRPC"])
def decoder(request: pytest.FixtureRequest, engine: LLM) -> Iterator[Decoder]:
    """Both ways to the same engine, which holds no block when a cell is done with it."""
    remote = request.param == "gRPC"
    if remote:
        client: Client = request.getfixturevalue("client")
        yield client
        client.decode("a", max_tokens=1)  # behind what the cell sent and gave up
    else:
        yield engine
    settle(engine)
