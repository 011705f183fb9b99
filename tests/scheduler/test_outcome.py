"""Top log-probabilities as pairs, all rows at once, against one row after the other; what a group that ends
early has."""

from __future__ import annotations

import numpy as np
import pytest

from forkdecode.scheduler.events import GroupFailed
from forkdecode.scheduler.outcome import top_of_rows, top_pairs
from forkdecode.step import TopLogprobs
from forkdecode.types import Beam, BestOf, Strategy
from tests.scheduler.engines import request, toy_engine


@pytest.mark.parametrize(("rows", "k"), [(0, 3), (1, 0), (1, 1), (5, 4)])
@pytest.mark.parametrize("masked", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("same", [False, True])
def test_pairs_of_rows_are_those_of_each(rows: int, k: int, masked: float, same: bool) -> None:
    rng = np.random.default_rng(3)
    ids = rng.integers(0, 1000, (2, rows, k))
    values = rng.normal(-3, 1, (2, rows, k)).astype(np.float32)
    values[rng.random(values.shape) < masked] = -np.inf
    raw = (ids[0], values[0])
    top = TopLogprobs(*raw, *(raw if same else (ids[1], values[1])))
    expected = [
        (top_pairs(top.raw_ids[r], top.raw[r]), top_pairs(top.processed_ids[r], top.processed[r]))
        for r in range(rows)
    ]
    found = top_of_rows(top)
    assert found == expected
    assert all(type(i) is int and type(v) is float for pair in found for kind in pair for i, v in kind)


@pytest.mark.parametrize("strategy", [BestOf(best_of=4, seed=1), Beam(width=4)], ids=["best_of", "beam"])
@pytest.mark.parametrize(("limit", "told"), [(4 * 3 * 5, True), (4 * 3 * 5 - 1, False)])
def test_a_group_that_ends_early_has_no_more_log_probabilities_than_are_made_at_once(
    monkeypatch: pytest.MonkeyPatch, strategy: Strategy, limit: int, told: bool
) -> None:
    """4 rows of 3 tokens with 3 log-probabilities each, and two more counted a token."""
    monkeypatch.setattr("forkdecode.scheduler.outcome.MAX_PARTIAL_LOGPROBS", limit)
    engine = toy_engine()
    engine.submit(request("r", [3], strategy, max_tokens=50, logprobs=3))
    for _ in range(3):
        engine.step()
    [ended] = engine.cancel("r")
    assert isinstance(ended, GroupFailed)
    assert [len(one.token_ids) for one in ended.candidates] == [3] * 4
    assert [one.logprobs is not None for one in ended.candidates] == [told] * 4
