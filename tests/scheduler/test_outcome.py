"""Top log-probabilities as pairs, all rows at once, against one row after the other."""

from __future__ import annotations

import numpy as np
import pytest

from forkdecode.scheduler.outcome import top_of_rows, top_pairs
from forkdecode.step import TopLogprobs


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
