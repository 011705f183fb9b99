"""An LLM whose trees are looked at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forkdecode import LLM
from tests.llm.models import PROMPT, opened


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with opened(block_size=4) as shared:
        yield shared
        assert shared.stats().held_nodes == 0
        # What the last step's copies have read is free from the next step on.
        shared.decode(PROMPT, max_tokens=2)
