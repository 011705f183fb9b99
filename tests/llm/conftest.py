from __future__ import annotations

from collections.abc import Iterator

import pytest

from forkdecode import LLM
from tests.llm.models import assert_idle, opened


@pytest.fixture(scope="package")
def shared_llm() -> Iterator[LLM]:
    with opened(block_size=4) as llm:
        yield llm


@pytest.fixture
def llm(shared_llm: LLM) -> Iterator[LLM]:
    """One engine for all tests that don't break it; each must leave it idle."""
    yield shared_llm
    assert_idle(shared_llm)
