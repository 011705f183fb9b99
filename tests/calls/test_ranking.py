"""What a caller's own scorer leaves of a result."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from forkdecode.calls.ranking import ranked
from forkdecode.results import Candidate, DecodeResult, Usage
from forkdecode.types import BestOf

USAGE = Usage(**{f.name: 0 for f in dataclasses.fields(Usage)})


def result(finished: int, **strategy: Any) -> DecodeResult:
    """Of 8 samples, some of which nothing legal could follow."""
    candidates = tuple(Candidate(i, (i,), "", "eos", -1.0, -1.0, -1.0) for i in range(finished))
    asked = BestOf(best_of=8, rank_by=lambda c: [x.index for x in c], **strategy)
    return DecodeResult("r", (1,), asked, 0, candidates, USAGE, exhausted=True)


@pytest.mark.parametrize(("n", "left"), [(2, [4, 3]), (5, [4, 3, 2, 1, 0]), (6, [4, 3, 2, 1, 0])])
def test_a_result_is_exhausted_where_fewer_than_n_are_ranked(n: int, left: list[int]) -> None:
    found = ranked(result(5, n=n))
    assert [c.index for c in found.candidates] == left
    assert found.exhausted is (len(left) < n)
