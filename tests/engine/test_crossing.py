"""What can't be served by an engine process is refused before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from forkdecode.config import EngineConfig
from forkdecode.engine.crossing import check_fits
from forkdecode.errors import CapacityError
from forkdecode.model.info import ModelInfo
from forkdecode.types import Greedy
from forkdecode.wire.messages import Hello
from tests.scheduler.engines import request

INFO = ModelInfo("model", 100, 10_000, (), ((1, 8),), (None,), "float32", 1)
HELLO = Hello(INFO, None, 100_000, 4, 64, 0)


def test_what_can_never_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forkdecode.engine.result_size.MAX_LOGPROBS", 1200)
    check_fits(request("r", [3], Greedy(), max_tokens=100, logprobs=10), HELLO, EngineConfig())
    large: list[tuple[dict[str, Any], str]] = [
        ({"max_tokens": 100, "logprobs": 11}, "logprobs"),
        ({"max_tokens": 10**6}, "max_tokens"),
    ]
    for options, field in large:
        with pytest.raises(CapacityError) as caught:
            check_fits(request("r", [3], Greedy(), **options), HELLO, EngineConfig())
        assert (caught.value.field, caught.value.request_id) == (field, "r")
