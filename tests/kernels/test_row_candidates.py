"""The best of each row: exact, ordered, the same whatever runs beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode_kernels import row_candidates as operation
from forkdecode_kernels.reference import row_candidates as reference
from forkdecode_kernels.row_candidates import RowCandidates, row_candidates

COLUMNS = ("row", "token", "score", "logprob", "valid")


def random_rows(seed: int, rows: int, vocab: int, *, levels: bool, masked: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab, generator=generator) * 3
    if levels:  # ties everywhere
        logits = logits.round()
    if masked:
        logits[torch.rand(logits.shape, generator=generator) < 0.6] = -torch.inf
    return logits


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    vocab=st.integers(1, 700),
    ks=st.lists(st.integers(1, 90), min_size=1, max_size=6),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    levels=st.booleans(),
    masked=st.booleans(),
    normalized=st.booleans(),
)
def test_equals_the_full_sort(
    seed: int, vocab: int, ks: list[int], dtype: torch.dtype, levels: bool, masked: bool, normalized: bool
) -> None:
    logits = random_rows(seed, 8, vocab, levels=levels, masked=masked)
    if normalized:  # what tokens score is then given, and ties are ties however it is computed
        logits = torch.log_softmax(logits, -1) if not masked else logits
    logits = logits.to(dtype)
    rng = np.random.default_rng(seed)
    rows, k = rng.integers(0, 8, len(ks)), np.array(ks, np.int64)
    base = rng.integers(-4, 1, len(ks)).astype(np.float32)
    found = row_candidates(logits, rows, k, base, normalized=normalized, threads=2)
    wanted = RowCandidates(*reference.row_candidates(logits, rows, k, base, normalized=normalized))
    np.testing.assert_array_equal(found.row, wanted.row)
    np.testing.assert_array_equal(found.valid, wanted.valid)
    np.testing.assert_allclose(found.score, wanted.score, atol=2e-5)
    np.testing.assert_allclose(found.logprob, wanted.logprob, atol=2e-5)
    assert (np.lexsort((found.token, -found.score, found.row)) == np.arange(len(found.row))).all()
    differ = found.token != wanted.token
    if normalized:
        assert not differ.any()
    np.testing.assert_allclose(found.score[differ], wanted.score[differ], atol=4e-6)


def test_a_row_at_fault_has_none_and_harms_no_other() -> None:
    logits = random_rows(1, 5, 300, levels=False, masked=False)
    logits[1, 7], logits[3, 2] = torch.nan, torch.inf
    logits[4] = -torch.inf
    k, base = np.full(5, 4), np.zeros(5, np.float32)
    found = row_candidates(logits, np.arange(5), k, base)
    assert found.valid.tolist() == [True, False, True, False, True]
    assert found.row.tolist() == [0] * 4 + [2] * 4
    for row in (0, 2):
        alone = row_candidates(logits, np.array([row]), k[:1], base[:1])
        np.testing.assert_array_equal(alone.token, found.token[found.row == row])
        np.testing.assert_array_equal(alone.score, found.score[found.row == row])


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = random_rows(2, 9, 200, levels=True, masked=True)
    asked = (logits, np.arange(9), np.full(9, 30), np.arange(9).astype(np.float32))
    whole = operation.sorted_rows(*asked, normalized=False)
    monkeypatch.setattr(operation, "CHUNK_ELEMENTS", 400)
    parts = operation.sorted_rows(*asked, normalized=False)
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))


@pytest.mark.parametrize("k", [1, 300, 700, 3000])
def test_few_of_many_tokens_and_nearly_all(k: int) -> None:
    """With a bound from the tiles, without one, and with more than are sorted at once."""
    logits = torch.cat([random_rows(3, 2, 5000, levels=levels, masked=False) for levels in (False, True)])
    asked = (torch.log_softmax(logits, -1), np.arange(4), np.full(4, k), np.zeros(4, np.float32))
    found, wanted = row_candidates(*asked, normalized=True), operation.sorted_rows(*asked, normalized=True)
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))


@pytest.mark.parametrize(
    ("rows", "k", "base", "said"),
    [
        ([0, 3], [1, 1], [0, 0], "outside"),
        ([0], [0], [0], "k must be"),
        ([0, 1], [1], [0], "must agree"),
        ([], [], [], "must agree"),
    ],
)
def test_refuses_what_contradicts_itself(rows: list[int], k: list[int], base: list[int], said: str) -> None:
    asked = (np.array(rows, np.int64), np.array(k, np.int64), np.array(base, np.float32))
    with pytest.raises(ValueError, match=said):
        row_candidates(torch.zeros(3, 5), *asked)
