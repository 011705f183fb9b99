"""TopK requests through select(): scores, processors on log-probabilities, k enlarged for stop strings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.sampling import group_logits
from forkdecode.sampling.processors import RowHistory, apply_processors
from forkdecode.sampling.select import select
from forkdecode.step import FinishMask, ProcessorSpec, SelectionResult
from tests.sampling.requests import beams, request

VOCAB = 50
PENALISED = ProcessorSpec(
    repetition_penalty=1.4, no_repeat_ngram_size=2, min_tokens=9, suppressed_ids=np.array([0, 3])
)


def setup(seed: int, rows: int) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(rows, VOCAB)).astype(np.float32) * 3)
    return logits, -rng.random(rows).astype(np.float32) * 4, rng.integers(0, VOCAB, (rows, 5))


def expected_scores(
    logits: torch.Tensor, base: np.ndarray, spec: ProcessorSpec, generated: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """As transformers: processors on log_softmax, then the running score. Returns processed, scores."""
    processed = torch.log_softmax(logits, -1)
    history = RowHistory(torch.tensor([1, 2, 3]), torch.from_numpy(generated))
    apply_processors(processed, spec, history, generated.shape[1])
    return processed, processed + torch.from_numpy(base)[:, None]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 6),
    k=st.integers(1, 40),
    spec=st.sampled_from([ProcessorSpec(), PENALISED]),
    logprobs=st.sampled_from([None, 0, 4]),
)
def test_scores(seed: int, rows: int, k: int, spec: ProcessorSpec, logprobs: int | None) -> None:
    logits, base, generated = setup(seed, rows)
    processed, scores = expected_scores(logits, base, spec, generated)
    (result,) = select(
        logits, [request(beams(k, base), rows, processors=spec, generated=generated, num_logprobs=logprobs)]
    )
    assert result.error is None
    best = scores.flatten().topk(min(k, rows * VOCAB))
    alive = int((~best.values.isneginf()).sum())
    np.testing.assert_array_equal(result.rows * VOCAB + result.tokens, best.indices[:alive])
    np.testing.assert_allclose(result.scores, best.values[:alive], atol=2e-6)
    np.testing.assert_allclose(result.selection_logprobs, processed[result.rows, result.tokens], atol=2e-6)
    raw = torch.log_softmax(logits, -1)
    np.testing.assert_allclose(result.logprobs, raw[result.rows, result.tokens], atol=2e-6)
    assert (result.top is None) == (logprobs is None)
    if logprobs and result.top is not None:
        np.testing.assert_array_equal(result.top.raw_ids, raw.topk(logprobs).indices)
        np.testing.assert_allclose(result.top.processed, processed.topk(logprobs).values, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_chunks_change_nothing(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, base, generated = setup(1, 7)
    ask = [
        request(beams(30, base), 7, processors=spec, generated=generated, num_logprobs=3)
        for spec in (ProcessorSpec(), PENALISED)
    ]
    whole = select(logits.to(dtype), ask)
    monkeypatch.setattr(group_logits, "CHUNK_BYTES", 4 * VOCAB * 2)
    for a, b in zip(whole, select(logits.to(dtype), ask), strict=True):
        assert_same(a, b)
        assert a.top is not None
        assert b.top is not None
        np.testing.assert_array_equal(a.top.processed, b.top.processed)


def assert_same(a: SelectionResult, b: SelectionResult) -> None:
    assert a.error == b.error
    for name in ("rows", "tokens", "logprobs", "selection_logprobs", "scores"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def test_inactive_processors_and_none_give_the_same_bits() -> None:
    """A processor that changes nothing of what is chosen must not change its score's last bit."""
    logits, base, generated = setup(2, 4)
    idle = ProcessorSpec(bad_words=((VOCAB - 1, VOCAB - 1, 0),))
    plain, processed = select(
        logits,
        [request(beams(8, base), 4, processors=s, generated=generated) for s in (ProcessorSpec(), idle)],
    )
    assert_same(plain, processed)


@pytest.mark.parametrize("spec", [ProcessorSpec(), PENALISED])
def test_k_grows_until_enough_go_on(spec: ProcessorSpec) -> None:
    logits, base, generated = setup(3, 4)
    _, scores = expected_scores(logits, base, spec, generated)
    ranked = scores.flatten().argsort(descending=True, stable=True)
    ends = ranked[:20]  # the best 20 all complete a stop string
    table = np.zeros((4, VOCAB), np.bool_)
    table[ends // VOCAB, ends % VOCAB] = True
    mask = FinishMask(table, np.arange(4))
    ask = beams(8, base, finishing=mask)
    (result,) = select(logits, [request(ask, 4, processors=spec, generated=generated)])
    assert len(result.tokens) == 32
    going = ~table[result.rows, result.tokens]
    assert going.sum() >= ask.live
    assert not going[:20].any()


def test_k_stops_growing_when_nothing_legal_is_left() -> None:
    logits, base, _ = setup(4, 2)
    logits[:, 10:] = -torch.inf
    everything = FinishMask(np.ones((1, VOCAB), np.bool_), np.zeros(2, np.int64))
    (result,) = select(logits, [request(beams(4, base, finishing=everything), 2)])
    assert len(result.tokens) == 20
    (ids,) = select(logits, [request(beams(4, base, finishing_ids=np.arange(VOCAB)), 2)])
    assert_same(result, ids)


def test_enough_live_candidates_leave_k_alone() -> None:
    logits, base, _ = setup(5, 3)
    nobody = FinishMask(np.zeros((1, VOCAB), np.bool_), np.zeros(3, np.int64))
    (result,) = select(logits, [request(beams(6, base, finishing=nobody), 3)])
    assert len(result.tokens) == 6


def test_fewer_legal_candidates_than_k() -> None:
    logits, base, _ = setup(6, 2)
    (result,) = select(
        logits, [request(beams(8, base), 2, processors=ProcessorSpec(allowed_token_ids=np.array([4])))]
    )
    assert sorted(zip(result.rows.tolist(), result.tokens.tolist(), strict=True)) == [(0, 4), (1, 4)]
    nothing = ProcessorSpec(allowed_token_ids=np.array([4]), bad_words=((4,),))
    (none,) = select(logits, [request(beams(8, base), 2, processors=nothing)])
    assert none.error is None
    assert len(none.tokens) == 0
