"""Draws on the device against full sorts in float64, and against the CPU's own draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode_kernels import draw as public
from forkdecode_kernels.draw import NO_TOKEN, NOT_FINITE, OK, filtered_draw, gpu_draws, reference_draws
from forkdecode_kernels.triton import filtered_draw as fast
from tests.kernels.test_draw import assert_same_distribution, draw_rows, uniforms

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks from a small vocabulary."""
    whole = fast.filtered_draw
    monkeypatch.setattr(fast, "filtered_draw", lambda *a, **k: whole(*a, chunk=128, **k))


# No round shares: with tied logits the weight before a token would equal the share exactly.
FILTERS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.05, 0.7, 1.0, 3.0]),
        "top_k": st.sampled_from([0, 1, 2, 7, 50, 10_000]),
        "top_p": st.sampled_from([1.0, 0.999, 0.91, 0.53, 0.013]),
        "min_p": st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    }
)


@settings(max_examples=8)
@given(
    st.integers(0, 2**31),
    st.integers(1, 200),
    FILTERS,
    st.sampled_from(DTYPES),
    st.sampled_from([None, 1.0]),
    st.booleans(),
)
def test_equals_the_full_sort_and_the_cpu(
    seed: int, vocab: int, filters: dict[str, float], dtype: torch.dtype, step: float | None, masked: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, vocab, generator=generator) * 3
    if step is not None:
        logits = (logits * step).round()
    if masked:
        logits[:, 1:][torch.rand(2, vocab - 1, generator=generator) < 0.5] = -torch.inf
    logits = logits.to(dtype)
    rows, u = draw_rows([1, 5], **filters), uniforms(6, seed)
    ours = gpu_draws(logits, rows, u, distribution=True)
    for theirs in (reference_draws(logits, rows, u, distribution=True), filtered_draw(logits, rows, u)):
        np.testing.assert_array_equal(ours.status, theirs.status)
        np.testing.assert_allclose(ours.logsumexp, theirs.logsumexp, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, rtol=2e-6, atol=4e-6)
        np.testing.assert_allclose(ours.raw, theirs.raw, rtol=2e-6, atol=4e-6)
        if theirs.distribution is not None:
            assert_same_distribution(ours, theirs)


def test_rows_with_different_filters_and_no_child() -> None:
    logits = torch.randn(5, 200, generator=torch.Generator().manual_seed(1)) * 2
    rows = draw_rows([3, 0, 2], top_p=0.9)
    rows = replace(
        rows,
        rows=np.array([4, 0, 2]),
        temperature=np.array([1.0, 0.5, 0.0]),
        top_k=np.array([0, 3, 9]),
        top_p=np.array([0.9, 1.0, 0.5]),
    )
    u = uniforms(5)
    ours, spec = gpu_draws(logits, rows, u), reference_draws(logits, rows, u)
    np.testing.assert_array_equal(ours.tokens, spec.tokens)
    assert ours.tokens[3] == ours.tokens[4] == logits[2].argmax()


def test_the_ends_of_the_unit_interval() -> None:
    logits = torch.full((1, 300), -torch.inf)
    logits[0, [3, 150]] = torch.tensor([0.0, 1.0])
    u = np.array([0.0, np.nextafter(1.0, 0.0)])
    for filters in ({}, {"top_p": 0.999}, {"top_k": 5}, {"top_k": 2, "top_p": 0.999}):
        assert gpu_draws(logits, draw_rows([2], **filters), u).tokens.tolist() == [3, 150]


def test_bad_rows_are_named_and_spoil_no_other() -> None:
    logits = torch.randn(4, 133, generator=torch.Generator().manual_seed(0))
    rows, u = draw_rows([1, 2, 1, 1], top_p=0.9), uniforms(5)
    clean = gpu_draws(logits, rows, u)
    logits[1, 130] = float("nan")
    logits[2] = -torch.inf
    drawn = gpu_draws(logits, rows, u)
    assert drawn.status.tolist() == [OK, NOT_FINITE, NO_TOKEN, OK]
    assert drawn.tokens.tolist() == [clean.tokens[0], -1, -1, -1, clean.tokens[4]]
    assert np.isnan(drawn.logsumexp[1])
    assert np.isneginf(drawn.logsumexp[2])


def test_a_cold_distribution_has_every_token_that_filters_leave() -> None:
    logits = torch.randn(2, 150, generator=torch.Generator().manual_seed(0))
    for filters in ({}, {"top_k": 9}):
        rows = draw_rows([1, 1], temperature=1e-3, **filters)
        drawn = gpu_draws(logits, rows, uniforms(2), distribution=True)
        reference = reference_draws(logits, rows, uniforms(2), distribution=True)
        assert drawn.distribution is not None
        assert reference.distribution is not None
        np.testing.assert_allclose(drawn.distribution, reference.distribution, rtol=2e-6)


def test_independent_of_the_batch() -> None:
    logits = torch.randn(3, 150, generator=torch.Generator().manual_seed(1)).bfloat16() * 4
    rows, u = draw_rows([1] * 3, top_p=0.9, top_k=40), uniforms(3)
    together = gpu_draws(logits, rows, u)
    for i in (0, 2):
        alone = gpu_draws(logits[i : i + 1], draw_rows([1], top_p=0.9, top_k=40), u[i : i + 1])
        assert alone.tokens[0] == together.tokens[i]
        assert alone.logprobs[0] == together.logprobs[i]


def test_typical_sampling_takes_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no filter of the kernels, so the public operation must not send it there."""
    monkeypatch.setattr(public, "gpu_draws", pytest.fail)
    filtered_draw(torch.zeros(1, 10), draw_rows([1], typical_p=0.5), uniforms(1))
