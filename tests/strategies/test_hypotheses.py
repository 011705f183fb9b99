"""The pool of finished hypotheses against a sorted list."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from forkdecode.strategies.hypotheses import NO_HYPOTHESES, Hypotheses, HypothesisBatch


def batch(scores: list[float], first: int) -> HypothesisBatch:
    n = len(scores)
    number = np.arange(first, first + n, dtype=np.int32)
    value = np.zeros(n, np.float32)
    return HypothesisBatch(
        generated=number,
        row=number,
        pick=number.astype(np.int64),
        token=number.astype(np.int64),
        logprob=value,
        selection_logprob=value,
        cumulative=value.astype(np.float64),
        selection=value,
        score=np.array(scores, np.float64),
        reason=np.ones(n, np.uint8),
        candidate=number,
    )


@given(st.integers(1, 6), st.lists(st.lists(st.integers(-3, 3).map(float), max_size=5), max_size=8))
def test_keeps_the_best_and_the_earlier_of_equals(limit: int, steps: list[list[float]]) -> None:
    pool, model, count = Hypotheses(limit), [], 0
    for scores in steps:
        new = batch(scores, count)
        ids = list(range(count, count + len(scores)))
        count += len(scores)
        accepted = pool.add(new)
        model = sorted([*model, *zip(scores, ids, strict=True)], key=lambda h: (-h[0], h[1]))[:limit]
        assert accepted.candidate.tolist() == [i for i in ids if i in {m[1] for m in model}]
        assert list(zip(pool.best().score, pool.best().candidate, strict=True)) == model
        assert pool.full == (len(model) == limit)
        assert len(pool) == len(model)
        if model:
            assert pool.worst == model[-1][0]
        assert pool.best(2).candidate.tolist() == [m[1] for m in model[:2]]


def test_columns_move_together() -> None:
    one, two = batch([1.0, 3.0], 0), batch([2.0], 2)
    merged = one.concat(two)[np.array([1, 2, 0])]
    assert merged.score.tolist() == [3.0, 2.0, 1.0]
    assert merged.row.tolist() == merged.token.tolist() == merged.candidate.tolist() == [1, 2, 0]
    assert len(NO_HYPOTHESES) == 0
    assert NO_HYPOTHESES.concat(two).score.dtype == np.float64
