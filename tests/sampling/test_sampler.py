"""Draws through select(): filters against transformers' warpers, seeds, greedy, top log-probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from forkdecode import lineage
from forkdecode.sampling.sampler import uniforms
from forkdecode.sampling.select import select
from forkdecode.step import ProcessorSpec
from tests.sampling.requests import children, request

VOCAB = 60


def warped(logits: torch.Tensor, **s: Any) -> torch.Tensor:
    """Log-probabilities after transformers' warpers, in its order."""
    warpers: list[Any] = [hf.TemperatureLogitsWarper(s["temperature"])]
    if s["top_k"]:
        warpers.append(hf.TopKLogitsWarper(s["top_k"]))
    if s["top_p"] < 1:
        warpers.append(hf.TopPLogitsWarper(s["top_p"]))
    if s["min_p"]:
        warpers.append(hf.MinPLogitsWarper(s["min_p"]))
    if s["typical_p"] < 1:
        warpers.append(hf.TypicalLogitsWarper(s["typical_p"]))
    for warper in warpers:
        logits = warper(None, logits)
    return torch.log_softmax(logits, -1)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.3, 0.8, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5, 40, 500]),
    top_p=st.sampled_from([1.0, 0.95, 0.7, 0.05]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    typical_p=st.sampled_from([1.0, 0.9, 0.3]),
)
def test_the_distribution_is_that_of_transformers_warpers(seed: int, **chosen: Any) -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    expected = warped(logits, **chosen)
    (result,) = select(logits, [request(children(30, 3, seed, **chosen), 3, num_logprobs=VOCAB)])
    assert result.error is None
    assert result.top is not None
    table = np.full((3, VOCAB), -np.inf, np.float32)
    for row in range(3):
        ids = result.top.processed_ids[row]
        table[row, ids[ids >= 0]] = result.top.processed[row, ids >= 0]
    np.testing.assert_allclose(table, expected.numpy(), rtol=1e-5, atol=1e-5)
    drawn = expected.numpy()[result.rows, result.tokens]
    np.testing.assert_allclose(result.selection_logprobs, drawn, rtol=1e-5, atol=1e-5)
    raw = torch.log_softmax(logits, -1).numpy()[result.rows, result.tokens]
    np.testing.assert_allclose(result.logprobs, raw, rtol=1e-5, atol=1e-5)


def test_the_token_is_where_the_uniform_falls() -> None:
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(1))
    choice = children(200, 2, seed=9, temperature=0.7)
    (result,) = select(logits, [request(choice, 2)])
    cumulative = torch.softmax(logits.double() / 0.7, -1).cumsum(-1).numpy()
    u = lineage.uniform(choice.lineage, choice.position)
    for i, token in enumerate(result.tokens):
        row = cumulative[choice.source[i]]
        assert (row[token - 1] if token else 0.0) <= u[i] + 1e-6
        assert u[i] <= row[token] + 1e-6


def test_same_seed_same_tokens_other_seed_or_position_others() -> None:
    logits = torch.zeros(1, 5000)

    def draw(**settings: Any) -> np.ndarray:
        return select(logits, [request(children(50, **settings), 1)])[0].tokens

    first = draw(seed=3)
    np.testing.assert_array_equal(first, draw(seed=3))
    assert (first != draw(seed=4)).mean() > 0.9
    assert (first != draw(seed=3, position=8)).mean() > 0.9
    assert len(np.unique(first)) > 45


def test_uniforms_fill_the_interval_evenly() -> None:
    u = np.sort(uniforms([children(20_000)]))
    # Kolmogorov-Smirnov at 1e-6: 2.7 / sqrt(n).
    assert np.abs(u - (np.arange(20_000) + 0.5) / 20_000).max() < 2.7 / np.sqrt(20_000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy(dtype: torch.dtype) -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(2)).to(dtype)
    logits[0, [5, 9]] = 10.0
    bias = ProcessorSpec(bias_ids=np.array([9]), bias_values=np.array([-0.5], np.float32))
    plain, biased = select(
        logits,
        [
            request(children(4, 4, temperature=0.0), 4),
            request(children(4, 4, temperature=0.0), 4, processors=bias, num_logprobs=2),
        ],
    )
    assert plain.tokens.tolist() == [5, *logits[1:].argmax(-1).tolist()]
    np.testing.assert_allclose(
        plain.selection_logprobs, torch.log_softmax(logits.float(), -1).max(-1).values, atol=1e-6
    )
    np.testing.assert_array_equal(plain.logprobs, plain.selection_logprobs)
    assert biased.top is not None
    assert biased.top.raw_ids[0].tolist() == [5, 9]
    processed = logits.float().clone()
    processed[:, 9] -= 0.5
    expected = torch.log_softmax(processed, -1)
    np.testing.assert_allclose(biased.selection_logprobs, expected.max(-1).values, atol=1e-6)
    np.testing.assert_allclose(biased.top.processed, expected.topk(2).values, atol=1e-6)


def test_top_logprobs_end_where_nothing_is_left() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.0, -1.0]])
    (result,) = select(logits, [request(children(1, top_k=2), 1, num_logprobs=3)])
    assert result.top is not None
    assert result.top.processed_ids.tolist() == [[1, 2, -1]]
    assert result.top.processed[0, 2] == -np.inf
    assert result.top.raw_ids.tolist() == [[1, 2, 0]]
    (none,) = select(logits, [request(children(1), 1, num_logprobs=0)])
    assert none.top is not None
    assert none.top.raw_ids.shape == (1, 0)
