"""The draw operation: equal to full sorts in float64, fair, the same whatever runs beside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode_kernels import draw as operation
from forkdecode_kernels.draw import NO_TOKEN, NOT_FINITE, OK, DrawRows, Draws, filtered_draw, reference_draws

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def draw_rows(children: list[int], **filters: float) -> DrawRows:
    m = len(children)
    chosen = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0} | filters
    columns = {name: np.full(m, value, np.float64) for name, value in chosen.items() if name != "top_k"}
    return DrawRows(
        np.arange(m),
        np.concatenate([[0], np.cumsum(children)]).astype(np.int64),
        top_k=np.full(m, chosen["top_k"], np.int64),
        **columns,
    )


def uniforms(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(n)


# No round shares: with tied logits the weight before a token would equal the share exactly, and the
# last bit of the sums would decide.
FILTERS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.05, 0.7, 1.0, 3.0]),
        "top_k": st.sampled_from([0, 1, 2, 7, 50, 10_000]),
        "top_p": st.sampled_from([1.0, 0.999, 0.91, 0.53, 0.013]),
        "min_p": st.sampled_from([0.0, 0.02, 0.3, 1.0]),
        "typical_p": st.sampled_from([1.0, 0.953, 0.43]),
    }
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**31),
    st.integers(1, 700),
    FILTERS,
    st.sampled_from(DTYPES),
    st.sampled_from([None, 1.0]),
    st.booleans(),
)
def test_equals_the_full_sort(
    seed: int, vocab: int, filters: dict[str, float], dtype: torch.dtype, step: float | None, masked: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, vocab, generator=generator) * 3
    if step is not None:
        logits = (logits * step).round()
    if masked:
        logits[:, 1:][torch.rand(4, vocab - 1, generator=generator) < 0.5] = -torch.inf
    logits = logits.to(dtype)
    rows, u = draw_rows([0, 1, 8, 3], **filters), uniforms(12, seed)
    ours = filtered_draw(logits, rows, u, distribution=True, threads=2)
    reference = reference_draws(logits, rows, u, distribution=True)
    np.testing.assert_array_equal(ours.status, reference.status)
    np.testing.assert_allclose(ours.logsumexp, reference.logsumexp, rtol=0, atol=1e-6)
    assert_same_distribution(ours, reference)
    np.testing.assert_array_equal(ours.tokens, reference.tokens)
    np.testing.assert_allclose(ours.logprobs, reference.logprobs, rtol=2e-6, atol=4e-6)
    sparse = filtered_draw(logits, rows, u)
    np.testing.assert_array_equal(sparse.tokens, ours.tokens)
    np.testing.assert_array_equal(sparse.logprobs, ours.logprobs)


def assert_same_distribution(ours: Draws, reference: Draws) -> None:
    """Where a token is kept its log-probability agrees; below e^-80 float32 weights are 0 and may go."""
    assert ours.distribution is not None
    assert reference.distribution is not None
    a, b = ours.distribution.numpy(), reference.distribution.numpy()
    assert a is not None
    assert b is not None
    likely = b > -80
    np.testing.assert_array_equal(np.isneginf(a) & likely, False)
    np.testing.assert_array_equal(np.isneginf(b) & ~np.isneginf(a), False)
    np.testing.assert_allclose(a[likely], b[likely], rtol=2e-6, atol=4e-6)


@pytest.mark.parametrize(
    "filters",
    [
        {"temperature": 0.8, "top_p": 0.95},
        {"top_k": 50},
        {"min_p": 0.05},
        {"typical_p": 0.9},
        {},
        {"temperature": 1.3, "top_k": 3000, "top_p": 0.9, "min_p": 1e-4, "typical_p": 0.99},
    ],
)
def test_full_vocabulary(filters: dict[str, float]) -> None:
    logits = torch.randn(3, 49152, generator=torch.Generator().manual_seed(5)) * 2.5
    rows, u = draw_rows([20, 20, 20], **filters), uniforms(60)
    ours = filtered_draw(logits, rows, u, distribution=True)
    reference = reference_draws(logits, rows, u, distribution=True)
    assert_same_distribution(ours, reference)
    np.testing.assert_array_equal(ours.tokens, reference.tokens)


@pytest.mark.parametrize(
    "filters", [{"temperature": 0.7}, {"top_p": 0.8}, {"top_k": 5, "min_p": 0.05}, {"typical_p": 0.6}]
)
def test_draws_follow_the_distribution(filters: dict[str, float]) -> None:
    """Pearson's chi-square of 40,000 draws against the float64 reference, at 5 sigma."""
    n = 40_000
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(3)) * 2
    rows = draw_rows([n], **filters)
    ours = filtered_draw(logits, rows, uniforms(n))
    reference = reference_draws(logits, draw_rows([1], **filters), np.zeros(1), distribution=True)
    assert reference.distribution is not None
    expected = n * np.exp(reference.distribution[0].double().numpy())
    counts = np.bincount(ours.tokens, minlength=40)
    assert (counts[expected == 0] == 0).all()
    alive = expected > 0
    chi = ((counts - expected)[alive] ** 2 / expected[alive]).sum()
    freedom = alive.sum() - 1
    assert chi < freedom + 5 * np.sqrt(2 * freedom) + 5


def test_greedy_takes_the_lowest_of_the_best() -> None:
    logits = torch.zeros(3, 1000)
    logits[0, [70, 900]] = 2.0
    logits[1, :] = -torch.inf
    logits[1, 999] = -50.0
    logits[2, 7] = -0.0
    drawn = filtered_draw(logits, draw_rows([1, 1, 1], temperature=0.0), uniforms(3))
    assert drawn.tokens.tolist() == [70, 999, 0]
    np.testing.assert_allclose(drawn.logprobs, torch.log_softmax(logits, -1).max(-1).values, atol=1e-6)


@pytest.mark.parametrize("vocab", [3, 1000])
@pytest.mark.parametrize("top_k", [1, 2])
def test_minus_zero_ties_with_zero_at_the_edge_of_top_k(vocab: int, top_k: int) -> None:
    logits = torch.full((1, vocab), -1.0)
    logits[0, :2] = torch.tensor([-0.0, 0.0])
    drawn = filtered_draw(logits, draw_rows([4], top_k=top_k), np.arange(4) / 4)
    assert drawn.tokens.tolist() == [0, 0, 1, 1]


def test_a_cold_distribution_has_every_token() -> None:
    """Whose weights a float32 does not hold: samples never draw them, stochastic beams do."""
    logits = torch.randn(2, 300, generator=torch.Generator().manual_seed(0))
    rows = draw_rows([1, 1], temperature=1e-3)
    drawn = filtered_draw(logits, rows, uniforms(2), distribution=True)
    reference = reference_draws(logits, rows, uniforms(2), distribution=True)
    assert drawn.distribution is not None
    assert reference.distribution is not None
    np.testing.assert_allclose(drawn.distribution, reference.distribution, rtol=2e-6)


@pytest.mark.parametrize("temperature", [1e-300, 1e-20, 1e-4])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    logits = torch.randn(2, 500, generator=torch.Generator().manual_seed(0))
    drawn = filtered_draw(logits, draw_rows([4, 4], temperature=temperature, top_p=0.9), uniforms(8))
    assert drawn.tokens.tolist() == logits.argmax(-1).repeat_interleave(4).tolist()
    assert (drawn.logprobs == 0).all()


def test_the_ends_of_the_unit_interval() -> None:
    logits = torch.full((1, 2000), -torch.inf)
    logits[0, [3, 1500]] = torch.tensor([0.0, 1.0])
    u = np.array([0.0, np.nextafter(1.0, 0.0)])
    for filters in ({}, {"top_p": 0.999}, {"top_k": 5}):
        drawn = filtered_draw(logits, draw_rows([2], **filters), u)
        assert drawn.tokens.tolist() == [3, 1500]


@pytest.mark.parametrize("value", [float("nan"), -float("nan"), float("inf")])
def test_bad_rows_are_named_and_spoil_no_other(value: float) -> None:
    logits = torch.randn(4, 333, generator=torch.Generator().manual_seed(0))
    rows, u = draw_rows([1, 2, 1, 1], top_p=0.9), uniforms(5)
    clean = filtered_draw(logits, rows, u)
    logits[1, 300] = value
    logits[2] = -torch.inf
    for drawn in (filtered_draw(logits, rows, u), reference_draws(logits, rows, u)):
        assert drawn.status.tolist() == [OK, NOT_FINITE, NO_TOKEN, OK]
        assert drawn.tokens.tolist() == [clean.tokens[0], -1, -1, -1, clean.tokens[4]]
    assert filtered_draw(logits, rows, u).logprobs[4] == clean.logprobs[4]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("strided", [False, True])
def test_independent_of_batch_order_and_threads(dtype: torch.dtype, strided: bool) -> None:
    wide = (torch.randn(40, 4100, generator=torch.Generator().manual_seed(1)) * 4).to(dtype)
    logits = wide[:, :4000] if strided else wide[:, :4000].contiguous()
    u = uniforms(40)
    for filters in ({}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.1}, {"typical_p": 0.9}):
        setup = draw_rows([1] * 40, **filters)
        together = filtered_draw(logits, setup, u, threads=3)
        turned = filtered_draw(logits, replace(setup, rows=setup.rows[::-1].copy()), u[::-1].copy())
        np.testing.assert_array_equal(together.tokens, turned.tokens[::-1])
        np.testing.assert_array_equal(together.logprobs, turned.logprobs[::-1])
        for i in (0, 17, 39):
            alone = filtered_draw(logits[i : i + 1], draw_rows([1], **filters), u[i : i + 1])
            assert alone.tokens[0] == together.tokens[i]
            assert alone.logprobs[0] == together.logprobs[i]


def test_refuses_what_does_not_fit() -> None:
    logits, good, u = torch.zeros(2, 10), draw_rows([1, 1]), uniforms(2)
    with pytest.raises(ValueError, match="logits must be"):
        filtered_draw(logits[0], good, u)
    with pytest.raises(ValueError, match="rows must be"):
        filtered_draw(logits, replace(good, rows=np.array([0, 2])), u)
    with pytest.raises(ValueError, match="child_offsets"):
        filtered_draw(logits, replace(good, child_offsets=np.array([0, 2, 1])), u)
    with pytest.raises(ValueError, match="uniform must be"):
        filtered_draw(logits, good, u[:1])
    with pytest.raises(ValueError, match="top_p must have"):
        filtered_draw(logits, replace(good, top_p=np.ones(1)), u)


def test_many_draws_of_few_rows_are_searched_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each draw takes a row's cumulative distribution, in float64: 600 MB for 512 draws of one row."""
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(3))
    rows, u, searched = draw_rows([9, 1, 5], typical_p=0.9), uniforms(15), []
    whole, search = reference_draws(logits, rows, u), torch.searchsorted

    def counted(among: torch.Tensor, wanted: torch.Tensor, *, right: bool) -> torch.Tensor:
        searched.append(len(among))
        return search(among, wanted, right=right)

    monkeypatch.setattr(torch, "searchsorted", counted)
    monkeypatch.setattr(operation, "CHUNK_ELEMENTS", 4 * 40)
    np.testing.assert_array_equal(reference_draws(logits, rows, u).tokens, whole.tokens)
    assert max(searched) == 4
    assert sum(searched) == 15
