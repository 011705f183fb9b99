"""The best of each row by the device's kernels, against a sort of each row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode_kernels import row_candidates as operation
from forkdecode_kernels.row_candidates import gpu_rows, sorted_rows


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles from a small vocabulary."""
    monkeypatch.setattr(operation, "ROW_TILE", 128)


def logits_of(
    seed: int, dtype: torch.dtype, *, levels: bool, masked: bool, vocab: int = 1200
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, vocab, generator=generator) * 3
    if levels:  # ties everywhere
        logits = logits.round()
    if masked:
        logits[torch.rand(logits.shape, generator=generator) < 0.9] = -torch.inf
    return logits.to(dtype)


@pytest.mark.parametrize(
    ("dtype", "levels", "masked"),
    [(torch.float32, False, False), (torch.float16, True, True), (torch.bfloat16, True, False)],
    ids=["float32", "float16", "bfloat16"],
)
def test_equals_the_sort(dtype: torch.dtype, levels: bool, masked: bool) -> None:
    """Normalised: then every score is exact, ties included."""
    logits = logits_of(1, dtype, levels=levels, masked=masked)
    rows, k = np.array([3, 0, 0, 2]), np.array([5, 1, 4, 20])
    base = np.array([-1, 0, 2, 0], np.float32)
    ours = gpu_rows(logits, rows, k, base, normalized=True)
    theirs = sorted_rows(logits, rows, k, base, normalized=True)
    for name in ("row", "token", "score", "logprob", "valid"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


@settings(max_examples=10)
@given(
    st.integers(0, 2**31),
    st.integers(1, 900),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), min_size=1, max_size=5),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    st.booleans(),
    st.booleans(),
)
def test_any_rows(
    seed: int, vocab: int, asked: list[tuple[int, int]], dtype: torch.dtype, levels: bool, masked: bool
) -> None:
    """Some of them few enough for a bound, some not, which are sorted."""
    logits = logits_of(seed, dtype, levels=levels, masked=masked, vocab=vocab)
    rows, k = np.array([r for r, _ in asked]), np.array([k for _, k in asked])
    base = np.random.default_rng(seed).normal(size=len(asked)).astype(np.float32)
    ours = gpu_rows(logits, rows, k, base, normalized=True)
    theirs = sorted_rows(logits, rows, k, base, normalized=True)
    for name in ("row", "token", "score", "logprob", "valid"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def test_log_softmax_and_rows_at_fault() -> None:
    logits = logits_of(2, torch.float32, levels=False, masked=False)
    logits[1, 700], logits[2, 3] = torch.nan, torch.inf
    logits[3] = -torch.inf
    rows, k, base = np.arange(4), np.full(4, 4), np.zeros(4, np.float32)
    ours = gpu_rows(logits, rows, k, base, normalized=False)
    theirs = sorted_rows(logits, rows, k, base, normalized=False)
    assert ours.valid.tolist() == theirs.valid.tolist() == [True, False, False, True]
    assert ours.row.tolist() == [0] * 4
    np.testing.assert_array_equal(ours.token, theirs.token)
    np.testing.assert_allclose(ours.logprob, theirs.logprob, atol=2e-6)


def test_more_than_a_list_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tokens alike: the lower ones are listed."""
    monkeypatch.setattr(operation, "ROW_CAPACITY", 8)
    found = gpu_rows(
        torch.zeros(2, 1200), np.arange(2), np.array([3, 2]), np.zeros(2, np.float32), normalized=False
    )
    assert found.row.tolist() == [0, 0, 0, 1, 1]
    assert found.token.tolist() == [0, 1, 2, 0, 1]
