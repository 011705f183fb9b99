"""A request that can never fit is told which of its fields to make smaller, and to what."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkdecode.errors import CapacityError
from forkdecode.scheduler.request import DecodeRequest, check_capacity
from forkdecode.strategies.factory import make_policy
from forkdecode.types import (
    Beam,
    BestOf,
    Continuations,
    DiverseBeam,
    Greedy,
    Sample,
    StochasticBeam,
    Strategy,
)
from tests.scheduler.engines import request

COUNTED: dict[str, Any] = {
    "n": lambda count: Sample(n=count),
    "best_of": lambda count: BestOf(best_of=count),
    "width": lambda count: Beam(width=count),
}


def refusal(what: DecodeRequest, blocks: int, *, overcommit: bool = False) -> CapacityError | None:
    rows = make_policy(what.strategy, what.options, what.stop_ids).max_rows
    try:
        check_capacity(what, rows, blocks, 4, overcommit=overcommit)
    except CapacityError as error:
        found = error
    else:
        return None
    assert str(found).startswith(f"{found.field}: ")
    assert found.limit is not None
    assert found.limit in str(found)
    assert found.request_id == "r"
    return found


def number_in(error: CapacityError) -> int:
    assert error.limit is not None
    return next(int(word) for word in error.limit.split() if word.isdigit())


@given(
    st.sampled_from(sorted(COUNTED)),
    st.integers(1, 40),
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(1, 60),
    st.booleans(),
)
def test_what_it_says_would_fit_fits_and_one_more_does_not(
    field: str, prompt: int, count: int, length: int, blocks: int, overcommit: bool
) -> None:
    def asked(count: int, length: int) -> DecodeRequest:
        return request("r", [1] * prompt, COUNTED[field](count), max_tokens=length)

    error = refusal(asked(count, length), blocks, overcommit=overcommit)
    if error is None:
        return
    if error.field == "prompt":
        assert refusal(asked(1, 1), blocks, overcommit=overcommit) is not None
        return
    most = number_in(error)
    assert most >= 1
    if error.field == "max_tokens":
        assert refusal(asked(1, most), blocks) is None
        assert refusal(asked(1, most + 1), blocks) is not None
    else:
        assert error.field == field
        assert refusal(asked(most, length), blocks, overcommit=overcommit) is None
        assert refusal(asked(most + 1, length), blocks, overcommit=overcommit) is not None


@pytest.mark.parametrize(
    ("strategy", "field"),
    [
        (Greedy(), "max_tokens"),
        (Sample(n=1), "max_tokens"),
        (DiverseBeam(width=2), "max_tokens"),
        (StochasticBeam(width=2), "max_tokens"),
    ],
)
def test_what_is_too_long_for_one_candidate_is_too_long(strategy: Strategy, field: str) -> None:
    error = refusal(request("r", [1, 2], strategy, max_tokens=5000), 50)
    assert error is not None
    assert error.field == field


@pytest.mark.parametrize("strategy", [DiverseBeam(width=400), StochasticBeam(width=400)])
def test_what_is_too_wide_is_too_wide(strategy: Strategy) -> None:
    error = refusal(request("r", [1, 2], strategy, max_tokens=8), 50)
    assert error is not None
    assert (error.field, number_in(error)) == ("width", 12)


def test_continuations_are_too_many_or_too_long() -> None:
    base = request("r", [1] * 5, Greedy())
    for ids in (((1,),) * 30, ((1,) * 400,)):
        what = dataclasses.replace(base, strategy=Continuations(ids))
        error = refusal(what, 50)
        assert error is not None
        assert error.field == "continuations"
