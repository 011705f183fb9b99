"""RowTopK requests through select(): each row's best, processors, constraints, more where some end."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.allowed import AllowedBits, AllowedLists, Ready
from forkdecode.sampling import group_logits
from forkdecode.sampling.processors import RowHistory, apply_processors
from forkdecode.sampling.select import select
from forkdecode.step import FinishMask, ProcessorSpec, RowTopK, SelectionRequest, SelectionResult

VOCAB = 50
PLAIN = ProcessorSpec()
PENALISED = ProcessorSpec(
    repetition_penalty=1.4, no_repeat_ngram_size=2, min_tokens=9, suppressed_ids=np.array([0, 3])
)


def setup(seed: int, rows: int) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(rows, VOCAB)).astype(np.float32) * 3)
    return logits, -rng.random(rows).astype(np.float32) * 4, rng.integers(0, VOCAB, (rows, 5))


def ask(choice: RowTopK, generated: np.ndarray, spec: ProcessorSpec = PLAIN, **more: Any) -> SelectionRequest:
    rows, made = generated.shape
    prompt = np.array([1, 2, 3])
    return SelectionRequest(0, more.pop("start", 0), rows, choice, spec, prompt, generated, made, **more)


def processed(logits: torch.Tensor, spec: ProcessorSpec, generated: np.ndarray) -> np.ndarray:
    """[R, V] as transformers: processors on log_softmax."""
    values = torch.log_softmax(logits, -1)
    history = RowHistory(torch.tensor([1, 2, 3]), torch.from_numpy(generated))
    apply_processors(values, spec, history, generated.shape[1])
    found: np.ndarray = values.numpy()
    return found


def listed(logprobs: np.ndarray, k: int) -> list[tuple[int, int]]:
    """(row, token) of the k best of each row, in plain words."""
    return [
        (r, t)
        for r, row in enumerate(logprobs)
        for t in sorted(range(len(row)), key=lambda t: (-row[t], t))[:k]
        if row[t] > -np.inf
    ]


def pairs(result: SelectionResult) -> list[tuple[int, int]]:
    assert result.error is None, result.error
    return list(zip(result.rows.tolist(), result.tokens.tolist(), strict=True))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 6),
    k=st.integers(1, 60),
    spec=st.sampled_from([ProcessorSpec(), PENALISED]),
    logprobs=st.sampled_from([None, 0, 4]),
)
def test_scores(seed: int, rows: int, k: int, spec: ProcessorSpec, logprobs: int | None) -> None:
    logits, base, generated = setup(seed, rows)
    (result,) = select(logits, [ask(RowTopK(k, base), generated, spec, num_logprobs=logprobs)])
    values = processed(logits, spec, generated)
    assert pairs(result) == listed(values, k)
    at = (result.rows, result.tokens)
    np.testing.assert_allclose(result.selection_logprobs, values[at], atol=2e-6)
    np.testing.assert_array_equal(result.scores, base[result.rows] + result.selection_logprobs)
    np.testing.assert_allclose(result.logprobs, torch.log_softmax(logits, -1).numpy()[at], atol=2e-6)
    assert (result.top is None) == (logprobs is None)
    if logprobs and result.top is not None:
        np.testing.assert_allclose(
            result.top.processed, torch.from_numpy(values).topk(logprobs).values, atol=2e-6
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_chunks_and_neighbours_change_nothing(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, base, generated = setup(1, 7)
    asked = [
        ask(RowTopK(30, base), generated, spec, num_logprobs=top)
        for spec in (ProcessorSpec(), PENALISED)
        for top in (None, 3)
    ]
    asked.append(ask(RowTopK(7, base[2:5]), generated[2:5], PENALISED, start=2))
    asked.append(ask(RowTopK(9, base[2:5]), generated[2:5], start=2))
    whole = select(logits.to(dtype), asked)
    monkeypatch.setattr(group_logits, "CHUNK_BYTES", 4 * VOCAB * 2)
    for one, together in zip(asked, whole, strict=True):
        (alone,) = select(logits.to(dtype), [one])
        assert pairs(alone) == pairs(together)
        np.testing.assert_array_equal(alone.scores, together.scores)
        np.testing.assert_array_equal(alone.logprobs, together.logprobs)


@pytest.mark.parametrize("spec", [ProcessorSpec(), PENALISED], ids=["plain", "processed"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_rows_fail_their_group_alone(spec: ProcessorSpec, bad: float) -> None:
    logits, base, generated = setup(2, 6)
    logits[4, 9] = bad
    asked = [ask(RowTopK(5, base[a:b]), generated[a:b], spec, start=a) for a, b in ((0, 2), (2, 5), (5, 6))]
    results = select(logits, asked)
    assert [r.error for r in results] == [None, "non-finite logits at generated token 6", None]
    assert pairs(results[0]) == listed(processed(logits[:2], spec, generated[:2]), 5)


def test_contradictions_are_told() -> None:
    logits, base, generated = setup(2, 2)
    asked = [
        ask(RowTopK(5, base[:1]), generated),
        ask(RowTopK(0, base), generated),
        ask(RowTopK(1, base), generated, start=1),
    ]
    for result in select(logits, asked):
        assert result.error is not None


# -- what may end -------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 5),
    k=st.integers(1, 8),
    live=st.integers(1, 12),
    share=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
    spec=st.sampled_from([ProcessorSpec(), PENALISED]),
)
def test_enough_of_each_row_go_on_whatever_stop_strings_end(
    seed: int, rows: int, k: int, live: int, share: float, spec: ProcessorSpec
) -> None:
    logits, base, generated = setup(seed, rows)
    rng = np.random.default_rng(seed)
    table, state = rng.random((3, VOCAB)) < share, rng.integers(0, 3, rows)
    ids = rng.integers(0, VOCAB, 2)
    choice = RowTopK(k, base, live, FinishMask(table, state), ids)
    (result,) = select(logits, [ask(choice, generated, spec)])
    values, found = processed(logits, spec, generated), pairs(result)
    ends = table[state].copy()
    ends[:, ids] = True
    assert found == listed(values, max(sum(r == row for r, _ in found) for row in range(rows)))
    for row in range(rows):
        tokens = [t for r, t in found if r == row]
        possible = int((~ends[row] & (values[row] > -np.inf)).sum())
        assert len(tokens) >= min(k, int((values[row] > -np.inf).sum()))
        assert sum(not ends[row, t] for t in tokens) >= min(live, possible)


def lists(rows: list[list[int]], ends: list[int]) -> AllowedLists:
    """Each row's tokens, of which those in `ends` complete an item."""
    tokens = np.array([t for row in rows for t in sorted(row)], np.int32)
    stop = np.cumsum([len(row) for row in rows])
    start = stop - [len(row) for row in rows]
    return AllowedLists(tokens, start.astype(np.int64), stop.astype(np.int64), np.isin(tokens, ends))


def test_a_constraint_masks_each_row_by_itself() -> None:
    logits, base, generated = setup(5, 3)
    allowed = [[3, 9, 30], [1], []]
    request = ask(RowTopK(2, base), generated, allowed=Ready(lists(allowed, [])))
    words = np.zeros((3, 2), np.uint32)
    for row, tokens in enumerate(allowed):
        for token in tokens:
            words[row, token // 32] |= np.uint32(1 << token % 32)
    by_bits = dataclasses.replace(request, allowed=Ready(AllowedBits(words)))
    values = np.full((3, VOCAB), -np.inf, np.float32)
    for row, tokens in enumerate(allowed):
        values[row, tokens] = torch.log_softmax(logits, -1).numpy()[row, tokens]
    for result in select(logits, [request, by_bits]):
        assert pairs(result) == listed(values, 2)
        np.testing.assert_allclose(result.selection_logprobs, values[result.rows, result.tokens], atol=2e-6)


def test_what_a_constraint_ends_is_told_and_made_up_for() -> None:
    logits, base, generated = setup(6, 2)
    allowed = [list(range(40)), list(range(10))]
    (result,) = select(
        logits,
        [ask(RowTopK(3, base, live=3), generated, allowed=Ready(lists(allowed, list(range(5, 40)))))],
    )
    assert result.ended is not None
    np.testing.assert_array_equal(result.ended, result.tokens >= 5)
    for row in (0, 1):
        assert (~result.ended & (result.rows == row)).sum() >= 3


def test_where_all_end_nothing_is_asked_again() -> None:
    """The last level of a catalogue: there is nothing that goes on, however many are listed."""
    logits, base, generated = setup(7, 2)
    allowed = Ready(lists([list(range(40)), list(range(30))], list(range(VOCAB))))
    (result,) = select(logits, [ask(RowTopK(3, base, live=3), generated, allowed=allowed)])
    assert len(result.tokens) == 6
    assert result.ended is not None
    assert result.ended.all()
