"""A server for tests of tree sessions; nothing may be left when they end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forkdecode import LLM
from forkdecode.server.settings import TreeSettings
from tests.client.conftest import settle
from tests.server.puppet import Puppet
from tests.server.servers import Running, running_server, tiny_llm
from tests.server.trees.sessions import Clock


@pytest.fixture(scope="module")
def engine() -> Iterator[LLM]:
    with tiny_llm() as llm:
        yield llm


@pytest.fixture
def llm(engine: LLM) -> Iterator[LLM]:
    """Each test must leave it idle, with no node held."""
    yield engine
    settle(engine)
    assert engine.stats().held_nodes == 0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(llm: LLM, clock: Clock) -> Iterator[Running]:
    with running_server(llm, clock=clock, trees=TreeSettings(grace=60, idle=600)) as running:
        yield running


@pytest.fixture
def puppet() -> Puppet:
    return Puppet()
