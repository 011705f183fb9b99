"""What can't be served by an engine process is refused before anything is sent."""

from __future__ import annotations

import pytest

from forkdecode.config import EngineConfig
from forkdecode.engine.crossing import check_fits
from forkdecode.errors import CapacityError
from forkdecode.model.info import ModelInfo
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.types import Beam, Greedy, Sample
from forkdecode.wire.messages import Hello
from tests.scheduler.engines import request, score_request

INFO = ModelInfo("model", 100, 10_000, (), ((1, 8),), (None,), "float32", 1)
HELLO = Hello(INFO, None, 100_000, 4, 64, 0)


@pytest.fixture(autouse=True)
def small_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forkdecode.engine.crossing.MAX_LOGPROBS", 1200)


@pytest.mark.parametrize(
    ("large", "field", "limit"),
    [
        (
            request("r", [3], Greedy(), max_tokens=100, logprobs=11),
            "logprobs",
            "at most 10 for 100 tokens",
        ),
        (
            request("r", [3], Sample(n=4), max_tokens=100, logprobs=2),
            "logprobs",
            "at most 1 for 400 tokens",
        ),
        (request("r", [3], Beam(width=7), max_tokens=100, logprobs=0), "logprobs", "at most 600 tokens"),
        (
            score_request("r", [3], [[4] * 60, [5] * 40], logprobs=11),
            "top_logprobs",
            "at most 10 for 100 tokens",
        ),
    ],
    ids=["greedy", "sample", "beam", "score"],
)
def test_a_result_too_large_to_be_sent(large: DecodeRequest, field: str, limit: str) -> None:
    with pytest.raises(CapacityError, match=f"^{field}: ") as caught:
        check_fits(large, HELLO, EngineConfig())
    assert (caught.value.field, caught.value.limit) == (field, limit)
    assert (caught.value.request_id, caught.value.retry_after) == ("r", None)


@pytest.mark.parametrize(
    "fits",
    [
        request("r", [3], Greedy(), max_tokens=100, logprobs=10),
        request("r", [3], Sample(n=4), max_tokens=100, logprobs=1),
        request("r", [3], Sample(n=4), max_tokens=9000),
        score_request("r", [3], [[4] * 60, [5] * 40], logprobs=10),
    ],
    ids=["greedy", "sample", "none", "score"],
)
def test_one_that_fits(fits: DecodeRequest) -> None:
    check_fits(fits, HELLO, EngineConfig())
