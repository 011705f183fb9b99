"""History against plain token lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.step import TopLogprobs
from forkdecode.strategies.history import SPAN, History
from forkdecode.strategies.hypotheses import HypothesisBatch


class Model:
    """Every row of every step as lists of (token, logprob, selection logprob, top row)."""

    def __init__(self) -> None:
        self.steps: list[list[list[tuple[int, float, float]]]] = [[[]]]
        self.tops: list[TopLogprobs] = []
        self.parents: list[list[int]] = []

    def append(self, parents: np.ndarray, tokens: np.ndarray, raw: np.ndarray, chosen: np.ndarray) -> None:
        self.parents.append(parents.tolist())
        self.steps.append(
            [
                [*self.steps[-1][p], (int(t), float(a), float(b))]
                for p, t, a, b in zip(parents, tokens, raw, chosen, strict=True)
            ]
        )


def grow(seed: int, steps: int, width: int, *, k: int | None = None) -> tuple[History, Model]:
    rng = np.random.default_rng(seed)
    history, model, rows = History(), Model(), 1
    for step in range(steps):
        n = int(rng.integers(1, width + 1))
        parents = rng.integers(0, rows, n).astype(np.int32)
        if n == rows and rng.random() < 0.5:
            parents = np.arange(n, dtype=np.int32)
        tokens = rng.integers(0, 1000, n)
        raw, chosen = rng.random((2, n)).astype(np.float32)
        top = None
        if k is not None:
            ids = rng.integers(0, 1000, (2, rows, k))
            values = rng.random((2, rows, k)).astype(np.float32)
            top = TopLogprobs(ids[0], values[0], ids[1], values[1])
            model.tops.append(top)
        history.append(parents, tokens, raw, chosen, top)
        model.append(parents, tokens, raw, chosen)
        rows = n
        assert history.steps == step + 1
    return history, model


@given(st.integers(0, 10_000), st.integers(0, 3 * SPAN + 2), st.integers(1, 6), st.data())
@settings(max_examples=60, deadline=None)
def test_tokens_of_any_step(seed: int, steps: int, width: int, data: st.DataObject) -> None:
    history, model = grow(seed, steps, width)
    step = data.draw(st.integers(0, steps))
    rows = data.draw(st.lists(st.integers(0, len(model.steps[step]) - 1), max_size=8))
    start = data.draw(st.one_of(st.just(0), st.integers(0, step)))
    found = history.tokens(step, np.array(rows, np.int32), start)
    assert found.shape == (len(rows), step - start)
    assert found.tolist() == [[t for t, _, _ in model.steps[step][r][start:]] for r in rows]


@given(st.integers(0, 10_000), st.integers(0, 3 * SPAN + 2), st.integers(1, 6), st.data())
@settings(max_examples=60, deadline=None)
def test_ancestors_at_any_level(seed: int, steps: int, width: int, data: st.DataObject) -> None:
    history, model = grow(seed, steps, width)
    step = data.draw(st.integers(0, steps))
    level = data.draw(st.integers(0, step))
    rows = list(range(len(model.steps[step])))
    found = history.ancestors(step, np.array(rows, np.int32), level)
    for parents in reversed(model.parents[level:step]):
        rows = [parents[row] for row in rows]
    assert found.tolist() == rows


def hypotheses(ends: list[tuple[int, int]]) -> HypothesisBatch:
    """Hypotheses that end in the step after `step`, from `row`: (step, row) each."""
    n = len(ends)
    generated = np.array([step + 1 for step, _ in ends], np.int32)
    number = np.arange(n, dtype=np.int32)
    half = number.astype(np.float32) / 2
    return HypothesisBatch(
        generated=generated,
        row=np.array([row for _, row in ends], np.int32),
        pick=number.astype(np.int64),
        token=5000 + number.astype(np.int64),
        logprob=half,
        selection_logprob=-half,
        cumulative=np.zeros(n),
        selection=half,
        score=np.zeros(n),
        reason=np.ones(n, np.uint8),
        candidate=number,
    )


@pytest.mark.parametrize("k", [None, 0, 3])
@pytest.mark.parametrize("seed", range(6))
def test_paths_of_hypotheses_of_different_lengths(seed: int, k: int | None) -> None:
    history, model = grow(seed, 40, 5, k=k)
    rng = np.random.default_rng(seed)
    ends = [(s := int(rng.integers(0, 40)), int(rng.integers(0, len(model.steps[s])))) for _ in range(12)]
    for number, (path, (step, row)) in enumerate(zip(history.paths(hypotheses(ends)), ends, strict=True)):
        expected = [*model.steps[step][row], (5000 + number, number / 2, -number / 2)]
        assert path.tokens.tolist() == [t for t, _, _ in expected]
        assert path.logprobs.tolist() == [a for _, a, _ in expected]
        assert path.selection_logprobs.tolist() == [b for _, _, b in expected]
        assert (path.top is None) == (k is None)


def test_top_is_that_of_the_row_each_token_was_chosen_from() -> None:
    history = History()
    tops = []
    for rows in (1, 2, 3):
        values = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2) + 10 * rows
        tops.append(TopLogprobs(values.astype(np.int64), values, values.astype(np.int64) + 1, values + 1))
    logprobs = np.zeros(3, np.float32)
    tokens = np.arange(3)
    history.append(np.zeros(2, np.int32), tokens[:2], logprobs[:2], logprobs[:2], tops[0])
    history.append(np.array([1, 0, 0], np.int32), tokens, logprobs, logprobs, tops[1])
    none = np.empty(0, np.int32)
    history.append(none, none.astype(np.int64), logprobs[:0], logprobs[:0], tops[2])
    (path,) = history.paths(hypotheses([(2, 2)]))
    assert path.top is not None
    assert path.top.raw_ids.tolist() == [
        tops[0].raw_ids[0].tolist(),
        tops[1].raw_ids[0].tolist(),
        tops[2].raw_ids[2].tolist(),
    ]
    assert path.top.processed.tolist() == (path.top.raw + 1).tolist()
    assert history.paths(hypotheses([])) == ()


def test_append_keeps_what_it_is_given_without_copies() -> None:
    history = History()
    parents, tokens, value = np.zeros(4, np.int32), np.arange(4), np.zeros(4, np.float32)
    history.append(parents, tokens, value, value)
    tokens[2] = 77
    assert history.tokens(1, np.array([2], np.int32)).tolist() == [[77]]
