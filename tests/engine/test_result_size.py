"""A result that is too large to be made or sent is refused before it is begun, and no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkdecode.engine.result_size import check_result, most_tokens
from forkdecode.errors import CapacityError
from forkdecode.scheduler.events import GroupFinished
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.strategies.factory import make_policy
from forkdecode.types import Beam, BestOf, DiverseBeam, Greedy, Sample, StochasticBeam, Strategy
from tests.scheduler.engines import request, run, score_request, toy_engine


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forkdecode.engine.result_size.MAX_LOGPROBS", 1200)
    monkeypatch.setattr("forkdecode.engine.result_size.MAX_HELD_LOGPROBS", 12_000)


def check(what: DecodeRequest) -> None:
    check_result(what, make_policy(what.strategy, what.options, what.stop_ids))


def asked(strategy: Strategy, logprobs: int | None, stream: bool = False, tokens: int = 100) -> DecodeRequest:
    return replace(request("r", [3], strategy, max_tokens=tokens, logprobs=logprobs), stream=stream)


WIDE = Beam(width=1, patience=100.0, early_stopping=True)


@pytest.mark.parametrize(
    ("large", "field", "limit"),
    [
        (asked(Greedy(), 11), "logprobs", "at most 10 for 100 tokens"),
        (asked(Sample(n=4), 2), "logprobs", "at most 1 for 400 tokens"),
        (asked(Beam(width=7), 0), "logprobs", "at most 600 tokens"),
        (asked(WIDE, 0), "logprobs", "at most 600 tokens"),
        (asked(BestOf(best_of=8, n=2), 5), "logprobs", "at most 4 for 200 tokens"),
        (asked(BestOf(best_of=8, n=1, rank_by="none"), 0), "logprobs", "at most 600 tokens"),
        (asked(BestOf(best_of=8, n=1, rank_by=lambda found: [0.0] * len(found)), 0), "logprobs", None),
        (asked(DiverseBeam(width=8, groups=4), 0), "logprobs", "at most 600 tokens"),
        (asked(StochasticBeam(width=8), 0), "logprobs", "at most 600 tokens"),
        (score_request("r", [3], [[4] * 60, [5] * 40], logprobs=11), "top_logprobs", None),
        # What is not returned is held while it is decoded, or told as it comes.
        (asked(BestOf(best_of=80, n=1), 0), "logprobs", "at most 6,000 tokens"),
        (asked(Beam(width=20, num_return_sequences=1), 5), "logprobs", "at most 4 for 2,000 tokens"),
        (asked(BestOf(best_of=100, n=1), 11, True, 1), "logprobs", "at most 10 for 100 tokens"),
    ],
    ids=lambda value: type(value.strategy).__name__ if isinstance(value, DecodeRequest) else "",
)
def test_a_result_too_large(large: DecodeRequest, field: str, limit: str | None) -> None:
    with pytest.raises(CapacityError, match=f"^{field}: ") as caught:
        check(large)
    assert caught.value.field == field
    assert limit is None or caught.value.limit == limit
    assert (caught.value.request_id, caught.value.retry_after) == ("r", None)


@pytest.mark.parametrize(
    "fits",
    [
        asked(Greedy(), 10),
        asked(Sample(n=4), 1),
        asked(Sample(n=4), None, tokens=9000),
        asked(Beam(width=8, num_return_sequences=1), 10),
        asked(BestOf(best_of=8, n=1), 10),
        asked(BestOf(best_of=100, n=1), 10, stream=True, tokens=1),
        asked(DiverseBeam(width=8, groups=2, num_return_sequences=1), 10),
        asked(WIDE, 4, tokens=19),
        score_request("r", [3], [[4] * 60, [5] * 40], logprobs=10),
    ],
    ids=lambda value: type(value.strategy).__name__,
)
def test_one_that_fits(fits: DecodeRequest) -> None:
    check(fits)


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 9))
def test_the_longest_that_results_can_be(results: int, rows: int, max_tokens: int) -> None:
    ends = sorted(list(range(1, max_tokens + 1)) * rows, reverse=True)
    assert most_tokens(results, rows, max_tokens) == sum(ends[:results])


def test_what_a_wide_pool_returns_was_counted() -> None:
    engine, beam = toy_engine(), Beam(width=4, patience=50.0, early_stopping=True)
    engine.submit(request("r", [3], beam, eos=range(16), max_tokens=12))
    last = run(engine)["r"]
    assert isinstance(last, GroupFinished)
    returned = sum(len(candidate.token_ids) for candidate in last.candidates)
    assert 4 * 12 < returned <= most_tokens(beam.pool_size, 4, 12)
