"""Masks by lists and bits, and the best of lists, against their references."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode_kernels.allowed import TokenLists, count_open, find_entries, keep_bits, keep_listed
from forkdecode_kernels.listed_topk import listed_topk
from forkdecode_kernels.reference import allowed as reference
from forkdecode_kernels.reference import listed as listed_reference
from forkdecode_kernels.topk import RowGroups, beam_topk


def random_lists(
    seed: int, rows: int, vocab: int, *, ends: bool, also: int, without_ends: bool
) -> TokenLists:
    """Lists of 0 to all of the vocabulary's tokens, some of them shared between rows."""
    rng = np.random.default_rng(seed)
    pools = [
        np.sort(rng.choice(vocab, rng.integers(0, vocab + 1), replace=False))
        for _ in range(max(1, rows // 2))
    ]
    edges = np.cumsum([0, *map(len, pools)])
    which = rng.integers(0, len(pools), rows)
    entries = int(edges[-1])
    return TokenLists(
        np.concatenate(pools).astype(np.int32),
        edges[which].astype(np.int64),
        edges[which + 1].astype(np.int64),
        rng.random(entries) < 0.3 if ends else np.empty(0, np.bool_),
        rng.random(rows) < 0.5,
        rng.choice(vocab, min(also, vocab), replace=False).astype(np.int64),
        without_ends,
    )


lists_settings = {
    "seed": st.integers(0, 2**32 - 1),
    "rows": st.integers(1, 40),
    "vocab": st.sampled_from([1, 7, 32, 33, 100, 640]),
    "ends": st.booleans(),
    "also": st.integers(0, 3),
    "without_ends": st.booleans(),
}


def random_logits(seed: int, rows: int, vocab: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Coarse, so that there are ties; some tokens are impossible."""
    rng = np.random.default_rng(seed)
    values = np.round(rng.standard_normal((rows, vocab)) * 2, 1).astype(np.float32)
    values[rng.random((rows, vocab)) < 0.1] = -np.inf
    return torch.from_numpy(values).to(dtype)


@given(threads=st.sampled_from([1, 2]), **lists_settings)
@settings(max_examples=150, deadline=None)
def test_lists_mask_as_the_reference_does(
    seed: int, rows: int, vocab: int, ends: bool, also: int, without_ends: bool, threads: int
) -> None:
    lists = random_lists(seed, rows, vocab, ends=ends, also=also, without_ends=without_ends)
    values = random_logits(seed, rows, vocab)
    expected = values.clone()
    reference.keep_listed(
        expected, lists.tokens, lists.start, lists.stop, lists.ends, lists.also, lists.also_ids, without_ends
    )
    keep_listed(values, lists, threads=threads)
    assert torch.equal(values, expected)


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 40),
    vocab=st.sampled_from([1, 31, 32, 33, 500]),
    share=st.sampled_from([0.0, 0.01, 0.5, 0.99, 1.0]),
    threads=st.sampled_from([1, 2]),
)
@settings(max_examples=100, deadline=None)
def test_bits_mask_as_the_reference_does(
    seed: int, rows: int, vocab: int, share: float, threads: int
) -> None:
    may = np.random.default_rng(seed).random((rows, vocab)) < share
    padded = np.pad(may, ((0, 0), (0, -vocab % 32)))
    words = np.packbits(padded, axis=1, bitorder="little").view(np.uint32)
    values = random_logits(seed, rows, vocab)
    expected = torch.where(torch.from_numpy(may), values, -torch.inf)
    by_reference = values.clone()
    reference.keep_bits(by_reference, words)
    keep_bits(values, words, threads=threads)
    assert torch.equal(values, expected)
    assert torch.equal(by_reference, expected)


@given(**lists_settings)
@settings(max_examples=100, deadline=None)
def test_entries_are_found(
    seed: int, rows: int, vocab: int, ends: bool, also: int, without_ends: bool
) -> None:
    lists = random_lists(seed, rows, vocab, ends=ends, also=also, without_ends=without_ends)
    rng = np.random.default_rng(seed)
    of, wanted = rng.integers(0, rows, 50), rng.integers(0, vocab, 50)
    expected = reference.find_entries(lists.tokens, lists.start[of], lists.stop[of], wanted)
    assert (find_entries(lists, of, wanted) == expected).all()
    assert count_open(lists) == reference.count_open(lists.start, lists.stop, lists.ends)


@given(
    k=st.integers(1, 60),
    threads=st.sampled_from([1, 2]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    **lists_settings,
)
@settings(max_examples=250, deadline=None)
def test_the_best_of_lists_is_the_masked_rows_best(
    seed: int,
    rows: int,
    vocab: int,
    ends: bool,
    also: int,
    without_ends: bool,
    k: int,
    threads: int,
    dtype: torch.dtype,
) -> None:
    """Bit for bit: by the full sort of the reference, and by masked log-probabilities."""
    lists = random_lists(seed, rows, vocab, ends=ends, also=also, without_ends=without_ends)
    logits = random_logits(seed, rows, vocab, dtype)
    base = np.round(np.random.default_rng(seed + 1).standard_normal(rows), 1).astype(np.float32)
    got = listed_topk(logits, lists, base, k, threads=threads)
    expected = listed_reference.listed_topk(
        logits,
        lists.tokens,
        lists.start,
        lists.stop,
        lists.ends,
        lists.also,
        lists.also_ids,
        without_ends,
        base,
        k,
    )
    best = got.best
    assert best.valid
    # The reference sums in another order, so its last bit may differ: compare what is picked by the mask.
    whole = RowGroups(np.zeros(1, np.int64), np.array([rows]), np.array([rows * vocab]))
    all_of_them = beam_topk(logits, whole, base)[0]
    masked = torch.full((rows, vocab), -torch.inf)
    masked[all_of_them.rows, all_of_them.tokens] = torch.from_numpy(all_of_them.logprobs)
    keep_listed(masked, lists)
    dense = beam_topk(
        masked, RowGroups(np.zeros(1, np.int64), np.array([rows]), np.array([k])), base, normalized=True
    )[0]
    for name in ("rows", "tokens", "scores", "logprobs"):
        np.testing.assert_array_equal(getattr(best, name), getattr(dense, name), err_msg=name)
    np.testing.assert_allclose(best.scores, expected[3], atol=1e-5)
    entry = find_entries(lists, best.rows, best.tokens)
    if without_ends and ends:
        entry = np.where(lists.ends[entry] & (entry >= 0), -1, entry) if len(lists.ends) else entry
    np.testing.assert_array_equal(got.entries, entry)


def test_a_row_that_is_not_finite_makes_the_group_invalid() -> None:
    lists = random_lists(1, 20, 50, ends=False, also=1, without_ends=False)
    logits = random_logits(1, 20, 50)
    logits[17, 3] = torch.nan
    got = listed_topk(logits, lists, np.zeros(20, np.float32), 5)
    assert not got.best.valid
    assert len(got.best.tokens) == len(got.entries) == 0


def test_rows_of_nothing_legal_list_nothing() -> None:
    lists = random_lists(1, 20, 50, ends=False, also=1, without_ends=False)
    logits = torch.full((20, 50), -torch.inf)
    assert len(listed_topk(logits, lists, np.zeros(20, np.float32), 5).best.tokens) == 0


def test_lists_mapped_from_a_file_are_read_as_they_are(tmp_path: object) -> None:
    lists = random_lists(3, 6, 40, ends=True, also=1, without_ends=False)
    path = f"{tmp_path}/tokens"
    lists.tokens.tofile(path)
    mapped = TokenLists(
        np.memmap(path, np.int32, "r"), lists.start, lists.stop, lists.ends, lists.also, lists.also_ids
    )
    values = random_logits(3, 6, 40)
    other = values.clone()
    keep_listed(values, lists)
    keep_listed(other, mapped)
    assert torch.equal(values, other)


@pytest.mark.parametrize("what", ["range", "token", "also", "rows"])
def test_lists_that_do_not_fit_are_refused(what: str) -> None:
    tokens, ids = np.array([1, 2, 60 if what == "token" else 3], np.int32), np.array([4])
    start, stop = np.zeros(2, np.int64), np.full(2, 4 if what == "range" else 3)
    if what == "also":
        ids = np.array([50])
    none = np.empty(0, np.bool_)
    lists = TokenLists(tokens, start, stop, none, np.ones(2, np.bool_), ids)
    with pytest.raises(ValueError, match=r"reach|vocabulary|rows"):
        keep_listed(torch.zeros(3 if what == "rows" else 2, 50), lists)
