"""What a constraint leaves of a group's logits, in each way of choosing."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode import lineage
from forkdecode.allowed import Allowed, AllowedBits, AllowedLists, Ready
from forkdecode.errors import GroupFailedError
from forkdecode.sampling.kinds import KINDS
from forkdecode.sampling.select import select
from forkdecode.step import (
    Choice,
    Gather,
    GumbelTopK,
    ProcessorSpec,
    RowTopK,
    SelectionRequest,
    SelectionResult,
    TopK,
)
from tests.sampling.requests import children, request

VOCAB = 200


def random_may(seed: int, rows: int, share: float = 0.2) -> np.ndarray:
    return np.random.default_rng(seed).random((rows, VOCAB)) < share


def as_lists(may: np.ndarray, ends: np.ndarray | None = None) -> AllowedLists:
    """ends [R, V]."""
    row, token = np.nonzero(may)
    edges = np.searchsorted(row, np.arange(len(may) + 1)).astype(np.int64)
    marked = None if ends is None else ends[row, token]
    return AllowedLists(token.astype(np.int32), edges[:-1], edges[1:], marked)


def as_bits(may: np.ndarray) -> AllowedBits:
    padded = np.pad(may, ((0, 0), (0, -may.shape[1] % 32)))
    return AllowedBits(np.packbits(padded, axis=1, bitorder="little").view(np.uint32))


def logits_of(seed: int, rows: int) -> torch.Tensor:
    """Coarse, for ties."""
    values = np.random.default_rng(seed).standard_normal((rows, VOCAB)) * 2
    return torch.from_numpy(np.round(values, 1).astype(np.float32))


def held(one: SelectionRequest, allowed: Allowed) -> SelectionRequest:
    return dataclasses.replace(one, allowed=Ready(allowed))


def choices(rows: int) -> list[Choice]:
    base = np.round(np.linspace(0, -1, rows), 2).astype(np.float32)
    gumbel = np.linspace(0, -1, rows) if rows > 1 else np.full(1, np.inf)
    roots = lineage.child(lineage.root(3), np.arange(rows))
    return [
        children(2 * rows, rows, temperature=0.8, top_p=0.9),
        children(rows, rows, temperature=0.0),
        TopK(6, base, live=3),
        RowTopK(4, base),
        GumbelTopK(5, np.zeros(rows), gumbel, roots, 7),
    ]


def arrays(result: SelectionResult) -> tuple[Any, ...]:
    assert result.error is None, result.error
    columns = (result.rows, result.tokens, result.scores, result.selection_logprobs)
    return tuple(tuple(column.tolist()) for column in columns)


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 8), which=st.integers(0, 4))
@settings(max_examples=80, deadline=None)
def test_every_choice_keeps_to_what_is_allowed(seed: int, rows: int, which: int) -> None:
    may = random_may(seed, rows)
    may[:, seed % VOCAB] = True
    logits, choice = logits_of(seed, rows), choices(rows)[which]
    one = request(choice, rows)
    told = [held(one, as_lists(may)), held(one, as_bits(may))]
    with_top = [dataclasses.replace(t, num_logprobs=3) for t in told]
    results = select(logits, told + with_top)
    assert len({arrays(r) for r in results}) == 1
    assert len(results[0].tokens) > 0
    assert may[results[0].rows, results[0].tokens].all()
    for result in results[2:]:
        assert result.top is not None
        shown = result.top.processed > -np.inf
        for row in range(rows):
            assert may[row, result.top.processed_ids[row][shown[row]]].all()


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 8))
@settings(max_examples=50, deadline=None)
def test_what_every_row_may_is_what_allowed_token_ids_would_leave(seed: int, rows: int) -> None:
    """A static constraint is the processor, in every choice."""
    ids = np.sort(np.random.default_rng(seed).choice(VOCAB, 20, replace=False)).astype(np.int64)
    may = np.zeros((rows, VOCAB), np.bool_)
    may[:, ids] = True
    logits = logits_of(seed, rows)
    for choice in choices(rows):
        one = request(choice, rows)
        spec = ProcessorSpec(allowed_token_ids=ids)
        by_processor, by_constraint = select(
            logits, [dataclasses.replace(one, processors=spec), held(one, as_lists(may))]
        )
        assert arrays(by_processor) == arrays(by_constraint)


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 8),
    share=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    live=st.integers(0, 12),
)
@settings(max_examples=80, deadline=None)
def test_candidates_that_end_do_not_crowd_out_those_that_live(
    seed: int, rows: int, share: float, live: int
) -> None:
    """Either way of looking for them; of those that live as many are listed as there are, or `live`."""
    may = random_may(seed, rows, 0.1)
    ends = may & (np.random.default_rng(seed + 1).random(may.shape) < share)
    base = np.zeros(rows, np.float32)
    ids = np.array([3, 4])
    one = held(request(TopK(4, base, live, finishing_ids=ids), rows), as_lists(may, ends))
    fast, dense = select(logits_of(seed, rows), [one, dataclasses.replace(one, num_logprobs=1)])
    assert arrays(fast) == arrays(dense)
    assert fast.ended is not None
    np.testing.assert_array_equal(fast.ended, dense.ended)
    np.testing.assert_array_equal(fast.ended, ends[fast.rows, fast.tokens])
    stays = ~ends & may
    stays[:, ids] = False
    listed = int((~fast.ended & ~np.isin(fast.tokens, ids)).sum())
    assert listed >= min(live, int(stays.sum()))


def test_the_last_level_of_a_catalogue_lists_no_more_than_it_was_asked_for() -> None:
    may = random_may(1, 4, 0.5)
    one = held(request(TopK(8, np.zeros(4, np.float32), live=4), 4), as_lists(may, may))
    for asked in (one, dataclasses.replace(one, num_logprobs=1)):
        (result,) = select(logits_of(1, 4), [asked])
        assert len(result.tokens) == 8
        assert result.ended is not None
        assert result.ended.all()


@pytest.mark.parametrize("num_logprobs", [None, 2])
@pytest.mark.parametrize("made", [0, 1, 2, 3])
def test_entries_that_end_wait_for_min_tokens(made: int, num_logprobs: int | None) -> None:
    """The token that would be the min_tokens-th may end its candidate."""
    may = random_may(1, 3, 0.5)
    ends = may & (random_may(2, 3, 0.5))
    for choice in choices(3):
        one = request(
            choice,
            3,
            processors=ProcessorSpec(min_tokens=3),
            num_generated=made,
            num_logprobs=num_logprobs,
        )
        (result,) = select(logits_of(1, 3), [held(one, as_lists(may, ends))])
        assert result.error is None
        assert result.ended is not None
        assert result.ended.any() == (made >= 2) or not ends[result.rows, result.tokens].any()
        np.testing.assert_array_equal(result.ended, ends[result.rows, result.tokens])


def test_eos_beside_a_list_is_masked_by_min_tokens() -> None:
    may = random_may(1, 2, 0.1)
    may[:, 7] = False
    lists = dataclasses.replace(
        as_lists(may), also=np.ones(2, np.bool_), also_ids=np.array([7], dtype=np.int64)
    )
    logits = logits_of(1, 2)
    logits[:, 7] = 50.0
    for made, comes in ((0, False), (2, True)):
        spec = ProcessorSpec(min_tokens=2, suppressed_ids=np.array([7]))
        for choice in choices(2):
            one = request(choice, 2, processors=spec, num_generated=made)
            (result,) = select(logits, [held(one, lists)])
            assert result.error is None
            assert (7 in result.tokens) == comes


def test_a_forced_token_stays_and_may_end_its_candidate() -> None:
    """It was checked when the request was made."""
    may = np.zeros((2, VOCAB), np.bool_)
    may[:, 5] = True
    for choice in choices(2):
        one = request(choice, 2, processors=ProcessorSpec(forced_prefix=(5,)))
        (result,) = select(logits_of(1, 2), [held(one, as_lists(may, may))])
        assert result.error is None
        assert set(result.tokens.tolist()) == {5}
        assert result.ended is not None
        assert result.ended.all()


def test_named_tokens_are_gathered_whatever_is_allowed() -> None:
    choice = Gather(np.zeros(2, np.int32), np.array([1, 2]))
    nothing = as_lists(np.zeros((1, VOCAB), np.bool_))
    (result,) = select(logits_of(1, 1), [held(request(choice, 1), nothing)])  # type: ignore[arg-type]
    assert result.error is None


@pytest.mark.parametrize("which", [0, 1])
def test_of_a_row_that_is_left_nothing_nothing_is_drawn(which: int) -> None:
    may = random_may(1, 2)
    may[1] = False
    one, other = request(choices(2)[which], 2), request(choices(2)[which], 2, group=1)
    stuck, free = select(logits_of(1, 2), [held(one, as_lists(may)), other])
    assert stuck.error is free.error is None
    assert set(stuck.rows.tolist()) == {0}
    assert set(free.rows.tolist()) == {0, 1}


class Failing:
    """A constraint that can't say what is allowed."""

    def get(self) -> Allowed:
        raise GroupFailedError("the constraint broke")


@pytest.mark.parametrize("allowed", [Failing(), Ready(as_lists(random_may(1, 3)))])
def test_a_constraint_that_fails_fails_its_group_alone(allowed: Any) -> None:
    logits, choice = logits_of(1, 2), choices(2)[2]
    bad = dataclasses.replace(request(choice, 2), allowed=allowed)
    good = held(request(choice, 2, group=1), as_lists(random_may(1, 2)))
    alone = select(logits, [good])[0]
    failed, fine = select(logits, [bad, good])
    assert failed.error is not None
    assert "the constraint broke" in failed.error or "3 rows" in failed.error
    assert arrays(fine) == arrays(alone)


class Late:
    """Counts, and is asked last."""

    def __init__(self, allowed: Allowed) -> None:
        self.asked: list[float] = []
        self._allowed = allowed

    def get(self) -> Allowed:
        self.asked.append(time.perf_counter())
        return self._allowed


def test_what_is_allowed_is_asked_once_and_after_the_others_are_done(monkeypatch: Any) -> None:
    order: list[str] = []
    plain, *others = KINDS[TopK].ways
    ways = (lambda *a, **k: order.append("free") or plain(*a, **k), *others)
    monkeypatch.setitem(KINDS, TopK, dataclasses.replace(KINDS[TopK], ways=ways))
    late = Late(as_lists(random_may(1, 2)))
    real_get = late.get
    monkeypatch.setattr(late, "get", lambda: order.append("asked") or real_get())
    choice = choices(2)[2]
    bound = dataclasses.replace(request(choice, 2), allowed=late)
    select(logits_of(1, 2), [bound, request(choice, 2, group=1)])
    assert order == ["free", "asked"]
