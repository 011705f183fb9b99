"""Named tokens' log-probabilities: exact, whatever runs beside them and however the rows are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forkdecode.sampling import gather as module
from forkdecode.sampling.gather import cut, joined
from forkdecode.sampling.select import select
from forkdecode.step import Gather, ProcessorSpec, SelectionRequest, SelectionResult
from tests.sampling.requests import beams, children, request

VOCAB = 300


def named(source: Any, tokens: Any) -> Gather:
    return Gather(np.asarray(source, np.int32), np.asarray(tokens, np.int64))


def logits_of(rows: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(rows)) * 4).to(dtype)


def asked(choice: Gather, rows: int, **more: Any) -> SelectionRequest:
    return request(choice, rows, **more)  # type: ignore[arg-type]


def same(a: SelectionResult, b: SelectionResult) -> None:
    assert a.error == b.error
    for name in ("rows", "tokens", "logprobs", "selection_logprobs", "scores"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        assert getattr(a, name).dtype == getattr(b, name).dtype
    assert (a.top is None) == (b.top is None)
    if a.top is not None and b.top is not None:
        for name in ("raw_ids", "raw", "processed_ids", "processed"):
            np.testing.assert_array_equal(getattr(a.top, name), getattr(b.top, name))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_is_log_softmax_at_the_tokens(dtype: torch.dtype) -> None:
    logits = logits_of(9, dtype)
    choice = named([0, 0, 3, 5, 5, 5], [7, 8, 299, 0, 0, 150])
    (found,) = select(logits, [asked(choice, 6, start=2, num_logprobs=5)])
    rows = logits[2:8].double().log_softmax(-1)
    want = rows[choice.source.astype(np.int64), choice.tokens]
    np.testing.assert_allclose(found.logprobs, want.numpy(), rtol=0, atol=1e-5)
    assert found.selection_logprobs is found.logprobs
    assert found.rows is choice.source
    assert found.tokens is choice.tokens
    assert found.top is not None
    best = rows.topk(5)
    np.testing.assert_array_equal(found.top.raw_ids, best.indices.numpy())
    np.testing.assert_allclose(found.top.raw, best.values.numpy(), rtol=0, atol=1e-5)


def test_processors_do_not_apply() -> None:
    logits = logits_of(2)
    choice = named([0, 1], [5, 6])
    spec = ProcessorSpec(bias_ids=np.array([5]), bias_values=np.array([3.0], np.float32), bad_words=((6,),))
    (plain,) = select(logits, [asked(choice, 2)])
    (processed,) = select(logits, [asked(choice, 2, processors=spec)])
    same(plain, processed)


def test_the_same_alone_and_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = logits_of(20)
    batch = [
        request(children(4, 3), 3),
        asked(named([0, 1, 2, 3], [1, 2, 3, 4]), 4, start=3, num_logprobs=3),
        request(beams(6, np.zeros(5)), 5, start=7),
        asked(named([0] * 5, range(5)), 1, start=12),
        asked(named(range(7), range(7)), 7, start=13, num_logprobs=0),
    ]
    together = select(logits, batch)
    monkeypatch.setattr(module, "CHUNK_BYTES", 3 * 4 * VOCAB)
    for one, found in zip(batch, together, strict=True):
        same(select(logits, [one])[0], found)
    assert together[4].top is None


@pytest.mark.parametrize(("value", "said"), [(np.nan, "non-finite"), (np.inf, "non-finite")])
def test_one_bad_row_fails_its_group_alone(value: float, said: str) -> None:
    logits = logits_of(8)
    batch = [asked(named(range(4), range(4)), 4, start=start, group=start) for start in (0, 4)]
    want = select(logits, batch)[1]
    logits[2, 17] = value
    failed, good = select(logits, batch)
    assert said in (failed.error or "")
    assert not len(failed.tokens)
    same(good, want)


def test_a_masked_token_is_impossible_and_a_masked_row_an_error() -> None:
    logits = logits_of(2)
    logits[0, 5] = -np.inf
    (found,) = select(logits, [asked(named([0, 0, 1], [5, 6, 5]), 2)])
    assert found.logprobs[0] == -np.inf
    assert np.isfinite(found.logprobs[1:]).all()
    logits[1] = -np.inf
    (found,) = select(logits, [asked(named([0], [6]), 2)])
    assert "no legal token" in (found.error or "")


@pytest.mark.parametrize(
    ("choice", "rows", "said"),
    [
        (named([0, 1], [3]), 2, "2 sources for 1 tokens"),
        (named([2], [3]), 2, "source outside"),
        (named([0], [VOCAB]), 2, "token outside"),
        (named([0], [-1]), 2, "token outside"),
        (named([0], [1]), 9, "reach outside"),
    ],
)
def test_contradictions_are_the_groups_error(choice: Gather, rows: int, said: str) -> None:
    (found,) = select(logits_of(4), [asked(choice, rows)])
    assert said in (found.error or "")


@given(
    source=st.lists(st.integers(0, 11), min_size=1, max_size=30).map(sorted),
    limit=st.integers(1, 13),
    num_logprobs=st.sampled_from([None, 0, 3]),
)
def test_pieces_join_to_the_whole(source: list[int], limit: int, num_logprobs: int | None) -> None:
    logits = logits_of(14)
    whole = asked(named(source, np.arange(len(source)) * 7 % VOCAB), 12, start=1, num_logprobs=num_logprobs)
    pieces = list(cut(whole, limit))
    assert all(piece.rows <= limit for piece in pieces)
    assert sum(piece.rows for piece in pieces) == 12
    same(joined(pieces, select(logits, pieces)), select(logits, [whole])[0])


def test_a_piece_that_fails_fails_the_whole() -> None:
    logits = logits_of(6)
    logits[4, 0] = np.nan
    pieces = list(cut(asked(named(range(6), range(6)), 6), 2))
    assert "non-finite" in (joined(pieces, select(logits, pieces)).error or "")


def test_draws_and_beams_are_not_cut() -> None:
    for choice in (children(4, 4), beams(6, np.zeros(4))):
        whole = request(choice, 4)
        assert list(cut(whole, 2)) == [whole]
