"""The top-k operation: exact, ordered, the same whatever runs beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode_kernels.logsumexp import float_rows
from forkdecode_kernels.topk import Continuations, RowGroups, beam_topk, reference_group, row_topk

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def groups_of(sizes: list[int], ks: list[int]) -> RowGroups:
    counts = np.array(sizes, np.int64)
    return RowGroups(np.cumsum(counts) - counts, counts, np.array(ks, np.int64))


def pairs(found: Continuations) -> list[tuple[int, int]]:
    return list(zip(found.rows.tolist(), found.tokens.tolist(), strict=True))


def assert_same_candidates(ours: Continuations, reference: Continuations) -> None:
    """Equal tokens in order, but for neighbours whose scores differ by float32's last bits."""
    assert ours.valid == reference.valid
    assert len(ours.tokens) == len(reference.tokens)
    np.testing.assert_allclose(ours.scores, reference.scores, rtol=0, atol=2e-5)
    np.testing.assert_allclose(ours.logprobs, reference.logprobs, rtol=0, atol=2e-5)
    for i, (a, b) in enumerate(zip(pairs(ours), pairs(reference), strict=True)):
        if a != b:
            near = np.abs(reference.scores - reference.scores[i]) < 4e-5
            assert near.sum() > 1 or i == len(reference.tokens) - 1


def assert_ordered(found: Continuations) -> None:
    rank = np.lexsort((found.tokens, found.rows, -found.scores))
    np.testing.assert_array_equal(rank, np.arange(len(rank)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**31),
    st.integers(1, 400),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 80)), min_size=1, max_size=4),
    st.sampled_from(DTYPES),
    st.sampled_from([None, 0.5, 0.0]),
    st.booleans(),
)
def test_equals_the_full_sort(
    seed: int,
    vocab: int,
    shape: list[tuple[int, int]],
    dtype: torch.dtype,
    step: float | None,
    masked: bool,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    sizes, ks = [n for n, _ in shape], [k for _, k in shape]
    logits = torch.randn(sum(sizes), vocab, generator=generator) * 3
    if step is not None:  # ties everywhere
        logits = (logits * step).round()
    if masked:
        logits[torch.rand(logits.shape, generator=generator) < 0.6] = -torch.inf
    logits = logits.to(dtype)
    base = np.round(np.random.default_rng(seed).normal(size=sum(sizes)) * 2).astype(np.float32)
    groups = groups_of(sizes, ks)
    found = beam_topk(logits, groups, base, threads=2)
    logprobs = float_rows(logits, np.arange(len(logits)), log_softmax=True).values
    normalized = beam_topk(logprobs, groups, base, normalized=True)
    for i, (ours, again) in enumerate(zip(found, normalized, strict=True)):
        rows = slice(groups.start[i], groups.start[i] + groups.count[i])
        assert_same_candidates(ours, reference_group(logits[rows], base[rows], ks[i], False))
        assert_ordered(ours)
        for name in ("rows", "tokens", "scores", "logprobs"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(again, name))


def test_ties_go_to_the_lower_row_then_token() -> None:
    for k in (1, 3, 130, 700):
        found = beam_topk(torch.zeros(3, 200), groups_of([3], [k]), np.zeros(3, np.float32))[0]
        flat = found.rows * 200 + found.tokens
        np.testing.assert_array_equal(flat, np.arange(min(k, 600)))


def test_minus_zero_ties_with_zero() -> None:
    logits = torch.full((2, 130), -1.0)
    logits[0, 5], logits[0, 100], logits[1, 0] = -0.0, 0.0, 0.0
    found = beam_topk(logits, groups_of([2], [3]), np.zeros(2, np.float32), normalized=True)[0]
    assert list(zip(found.rows, found.tokens, strict=True)) == [(0, 5), (0, 100), (1, 0)]


def test_masked_tokens_are_never_listed() -> None:
    logits = torch.full((2, 100), -torch.inf)
    logits[1, [3, 70]] = torch.tensor([1.0, 2.0])
    found = beam_topk(logits, groups_of([2], [8]), np.zeros(2, np.float32))[0]
    assert found.tokens.tolist() == [70, 3]
    assert found.rows.tolist() == [1, 1]
    nothing = beam_topk(logits[:1], groups_of([1], [8]), np.zeros(1, np.float32))[0]
    assert nothing.valid
    assert len(nothing.tokens) == 0


@pytest.mark.parametrize("value", [float("nan"), -float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bad_row_spoils_its_own_group_only(value: float, dtype: torch.dtype) -> None:
    logits = torch.randn(6, 333, generator=torch.Generator().manual_seed(0)).to(dtype)
    groups, base = groups_of([2, 2, 2], [4, 4, 4]), np.zeros(6, np.float32)
    clean = beam_topk(logits, groups, base)
    logits[3, 332] = value
    found = beam_topk(logits, groups, base)
    assert [f.valid for f in found] == [True, False, True]
    assert len(found[1].tokens) == 0
    for i in (0, 2):
        np.testing.assert_array_equal(found[i].scores, clean[i].scores)


@pytest.mark.parametrize("dtype", DTYPES)
def test_independent_of_batch_order_and_threads(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = (torch.randn(40, 5000, generator=generator) * 4).to(dtype)
    base = np.random.default_rng(0).normal(size=40).astype(np.float32)
    together = beam_topk(logits, groups_of([4] * 10, [8] * 10), base, threads=3)
    backwards = RowGroups(np.arange(36, -1, -4), np.full(10, 4), np.full(10, 8))
    turned = beam_topk(logits, backwards, base.reshape(10, 4)[::-1].reshape(-1), threads=1)
    for i in range(10):
        own = slice(4 * i, 4 * i + 4)
        alone = beam_topk(logits[own], groups_of([4], [8]), base[own])[0]
        for other in (alone, turned[9 - i]):
            np.testing.assert_array_equal(together[i].scores, other.scores)
            np.testing.assert_array_equal(together[i].logprobs, other.logprobs)
            np.testing.assert_array_equal(together[i].tokens, other.tokens)


def test_logsumexp_is_as_exact_as_torchs() -> None:
    logits = torch.randn(16, 49152, generator=torch.Generator().manual_seed(2)) * 4
    exact = torch.logsumexp(logits.double(), -1).numpy()
    found = float_rows(logits, np.arange(16), log_softmax=True, threads=2)
    ours = np.abs(found.logsumexp - exact).max()
    torchs = np.abs(torch.logsumexp(logits, -1).double().numpy() - exact).max()
    assert ours <= 2 * torchs
    wide = torch.log_softmax(logits.double(), -1)
    error = (found.values.double() - wide).abs().max()
    assert error <= 2 * (torch.log_softmax(logits, -1).double() - wide).abs().max()


@pytest.mark.parametrize("dtype", DTYPES)
def test_float_rows(dtype: torch.dtype) -> None:
    logits = torch.randn(12, 333, generator=torch.Generator().manual_seed(2)).to(dtype)
    logits[4] = -torch.inf
    logits[5, 7] = torch.nan
    rows = np.array([4, 11, 0, 5, 4])
    copied = float_rows(logits, rows, log_softmax=False, threads=2)
    assert torch.equal(copied.values.nan_to_num(7.0), logits[rows].float().nan_to_num(7.0))
    assert copied.valid.tolist() == [True, True, True, False, True]
    assert copied.logsumexp[[0, 4]].tolist() == [-np.inf, -np.inf]
    softmaxed = float_rows(logits, rows, log_softmax=True)
    expected = torch.log_softmax(logits[[11, 0]].float(), -1)
    torch.testing.assert_close(softmaxed.values[1:3], expected, rtol=0, atol=2e-6)
    assert softmaxed.values[[0, 4]].isneginf().all()
    with pytest.raises(ValueError, match="rows must be"):
        float_rows(logits, np.array([12]), log_softmax=False)


def test_never_writes_to_the_logits() -> None:
    logits = torch.randn(4, 300)
    before = logits.clone()
    beam_topk(logits, groups_of([4], [8]), np.zeros(4, np.float32), normalized=True)
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    ("groups", "base", "message"),
    [
        (groups_of([3], [1]), np.zeros(3, np.float32), "outside"),
        (groups_of([2], [0]), np.zeros(2, np.float32), "k must be"),
        (groups_of([2], [1]), np.zeros(3, np.float32), "base must be"),
        (groups_of([2], [1]), np.zeros(2), "base must be"),
    ],
)
def test_refuses_what_does_not_fit(groups: RowGroups, base: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        beam_topk(torch.zeros(2, 10), groups, base)


@pytest.mark.parametrize("dtype", DTYPES)
def test_row_topk(dtype: torch.dtype) -> None:
    logits = torch.randn(9, 600, generator=torch.Generator().manual_seed(4)).to(dtype)
    logits[2, 5:] = -torch.inf
    logits[3] = -torch.inf
    logits[4, 9] = torch.nan
    ids, logprobs = row_topk(logits, 8, threads=2)
    best = torch.log_softmax(logits.float(), -1).topk(8)
    fine = [0, 1, 5, 6, 7, 8]
    np.testing.assert_allclose(logprobs[fine], best.values[fine], atol=1e-5)
    np.testing.assert_allclose(
        logits.float()[fine].gather(1, torch.from_numpy(ids[fine])), logits.float()[fine].topk(8).values
    )
    assert sorted(ids[2, :5].tolist()) == [0, 1, 2, 3, 4]
    assert (ids[2, 5:] == -1).all()
    assert (ids[3:5] == -1).all()
    assert np.isneginf(logprobs[3:5]).all()
    wide, _ = row_topk(logits[:1, :3], 10)
    assert (wide[0, :3] >= 0).all()
    assert (wide[0, 3:] == -1).all()
