"""Copies of rows, their sums, and masks of them, against torch's own operations and the references."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode_kernels.allowed import TokenLists, gpu_bits, packed_lists
from forkdecode_kernels.logsumexp import device_rows, gpu_rows
from forkdecode_kernels.reference.allowed import keep_bits as reference_bits
from forkdecode_kernels.reference.allowed import keep_listed
from forkdecode_kernels.reference.logsumexp import log_softmax, row_logsumexp
from forkdecode_kernels.triton import float_rows as fast

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@contextmanager
def small_programs() -> Iterator[None]:
    """Several programs, or rounds of one, from a small vocabulary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "TILE", 128)
        patch.setattr(fast, "WORDS", 4)
        patch.setattr(fast, "ENTRIES", 16)
        yield


def random_logits(seed: int, rows: int, vocab: int, dtype: torch.dtype, masked: float) -> torch.Tensor:
    """Some of them -inf; rows that lie apart in a wider tensor of NaN."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.full((rows, vocab + 3), torch.nan, dtype=dtype)
    logits = wide[:, :vocab]
    logits.copy_(torch.randn(rows, vocab, generator=generator) * 4)
    logits[torch.rand(rows, vocab, generator=generator) < masked] = -torch.inf
    return logits


def random_words(rng: np.random.Generator, rows: int, vocab: int) -> np.ndarray:
    return rng.integers(0, 2**32, (rows, -(-vocab // 32)), dtype=np.uint64).astype(np.uint32)


@settings(max_examples=15)
@given(
    st.integers(0, 2**31),
    st.integers(1, 5),
    st.integers(1, 500),
    st.sampled_from(DTYPES),
    st.sampled_from([0.0, 0.5, 0.97, 1.0]),
)
def test_any_rows_log_softmaxed_and_masked(
    seed: int, rows: int, vocab: int, dtype: torch.dtype, masked: float
) -> None:
    """Rows in any order and more than once. Rule of tolerance: twice the error of torch's log_softmax in
    float32, against float64; where that hits by luck, a unit in the last place of 1 or of the largest."""
    logits, rng = random_logits(seed, rows, vocab, dtype, masked), np.random.default_rng(seed)
    places = torch.from_numpy(rng.integers(0, rows, rng.integers(1, 7)))
    out, plain_out = torch.empty(2, len(places), vocab)
    with small_programs():
        sums = fast.row_logsumexp(logits, places)
        fast.float_rows(logits, places, sums, out, log_softmax=True)
        fast.float_rows(logits, places, sums, plain_out, log_softmax=False)
    picked = logits[places]
    assert torch.equal(plain_out, picked.float())
    empty = picked.isneginf().all(-1)
    assert torch.equal(sums.isneginf(), empty)
    assert out[empty].isneginf().all()
    some = picked.isfinite()
    exact = torch.log_softmax(picked.double(), -1)[some]
    if len(exact):
        plain = torch.log_softmax(picked.float(), -1)[some]
        allowed = max(2 * (plain - exact).abs().max(), 2**-23 * max(1.0, exact.abs().max()))
        assert (out[some] - exact).abs().max() <= allowed
    assert out[~some].isneginf().all()

    masked_rows = torch.from_numpy(rng.permutation(len(places))[: rng.integers(1, len(places) + 1)])
    words, before = random_words(rng, len(masked_rows), vocab), out.clone()
    with small_programs():
        fast.keep_bits(out, masked_rows, torch.from_numpy(words.view(np.int32)))
    wanted = before[masked_rows]
    reference_bits(wanted, words)
    before[masked_rows] = wanted
    assert torch.equal(out, before)


@settings(max_examples=15)
@given(st.integers(0, 2**31), st.integers(1, 300), st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_any_lists_as_bits(seed: int, vocab: int, lengths: list[int]) -> None:
    """Ids in any order, and some twice; entries that are nobody's before, between and behind."""
    rng = np.random.default_rng(seed)
    start, stop, end = np.empty(len(lengths), np.int32), np.empty(len(lengths), np.int32), 0
    for i, length in enumerate(lengths):
        start[i] = end + rng.integers(0, 3)
        stop[i] = end = start[i] + length
    tokens = rng.integers(0, vocab, end + 2).astype(np.int32)
    with small_programs():
        words = fast.bits_of_lists(*(torch.from_numpy(a) for a in (tokens, start, stop)), vocab)
    bits = np.unpackbits(words.numpy().view(np.uint8), axis=1, bitorder="little")
    for row, first, last in zip(bits, start, stop, strict=True):
        assert np.flatnonzero(row).tolist() == sorted(set(tokens[first:last].tolist()))


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("normal", [False, True], ids=["as they are", "log-softmaxed"])
def test_the_operation_on_a_gpu_answers_as_torchs_own(dtype: torch.dtype, normal: bool) -> None:
    """Rows more than once, two at fault, one of -inf alone, logits that are strided both ways, and no row."""
    logits = random_logits(3, 5, 300, dtype, 0.1)
    logits[1, 7], logits[2, 299], logits[3] = torch.nan, torch.inf, -torch.inf
    rows = np.array([4, 1, 0, 3, 2, 0])
    with small_programs():
        for given_logits in (logits, logits.T.contiguous().T):
            ours = gpu_rows(given_logits, rows, log_softmax=normal)
            theirs = device_rows(given_logits, rows, log_softmax=normal)
            assert ours.valid.tolist() == theirs.valid.tolist() == [True, False, True, True, False, True]
            fine = ours.valid
            np.testing.assert_allclose(ours.logsumexp[fine], theirs.logsumexp[fine], rtol=0, atol=1e-6)
            assert np.isnan(ours.logsumexp[~fine]).all()
            assert ours.values.dtype == torch.float32
            tolerance = 2e-6 if normal else 0.0
            torch.testing.assert_close(ours.values[fine], theirs.values[fine], rtol=0, atol=tolerance)
        none = gpu_rows(logits, rows[:0], log_softmax=normal)
    assert (none.values.shape, none.logsumexp.shape, none.valid.shape) == ((0, 300), (0,), (0,))


@pytest.mark.parametrize("vocab", [1, 32, 333])
def test_the_mask_on_a_gpu_keeps_what_the_reference_keeps(vocab: int) -> None:
    words = random_words(np.random.default_rng(vocab), 3, vocab)
    words[1] = 0
    values = torch.randn(3, vocab, generator=torch.Generator().manual_seed(vocab))
    wanted = values.clone()
    reference_bits(wanted, words)
    with small_programs():
        gpu_bits(values, words)
        gpu_bits(values[:0], words[:0])
    assert torch.equal(values, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float16", "bfloat16"])
def test_rows_and_their_sums(dtype: torch.dtype) -> None:
    """4,500 tokens: one whole tile and a part of one."""
    logits = (torch.randn(5, 4500, generator=torch.Generator().manual_seed(1)) * 4).to(dtype)
    logits[1] = -torch.inf
    logits[3, 4400], logits[4, 3] = torch.nan, torch.inf
    rows = torch.tensor([4, 0, 1, 2, 3])
    sums = fast.row_logsumexp(logits, rows)
    exact, valid = row_logsumexp(logits[rows])
    assert sums.isnan().tolist() == (~valid).tolist() == [True, False, False, False, True]
    torch.testing.assert_close(sums[valid], exact[valid], rtol=0, atol=1e-6)
    for normal, wanted in ((False, logits[rows].float()), (True, log_softmax(logits[rows], sums))):
        out = torch.full((5, 4512), 7.0)
        fast.float_rows(logits, rows, sums, out[:, :4500], log_softmax=normal)
        assert torch.equal(out[valid][:, :4500], wanted[valid])
        assert (out[:, 4500:] == 7).all()


@pytest.mark.parametrize("vocab", [31, 64, 8300], ids=["part of a word", "whole words", "two programs"])
def test_bits_keep_what_the_reference_keeps(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    words = rng.integers(0, 2**32, (2, -(-vocab // 32)), dtype=np.uint64).astype(np.uint32)
    words[1, 0] = 0xFFFFFFFF
    out = torch.randn(4, vocab + 5)
    mine, before = out[:, :vocab], out.clone()
    fast.keep_bits(mine, torch.tensor([3, 1]), torch.from_numpy(words.view(np.int32)))
    wanted = before[[3, 1], :vocab].clone()
    reference_bits(wanted, words)
    assert torch.equal(mine[[3, 1]], wanted)
    assert torch.equal(mine[[0, 2]], before[[0, 2], :vocab])
    assert torch.equal(out[:, vocab:], before[:, vocab:])


def test_bits_of_lists() -> None:
    """An empty list, one of more entries than a program takes at a time, and ids that repeat."""
    vocab = 3000
    tokens = np.concatenate([[5, 31, 32, 2999, 5], np.arange(1, 2600)]).astype(np.int32)
    start, stop = np.array([0, 3, 5], np.int32), np.array([5, 3, 2604], np.int32)
    words = fast.bits_of_lists(*(torch.from_numpy(a) for a in (tokens, start, stop)), vocab)
    bits = np.unpackbits(words.numpy().view(np.uint8), axis=1, bitorder="little")
    found = [np.flatnonzero(row).tolist() for row in bits]
    assert found == [[5, 31, 32, 2999], [], list(range(1, 2600))]


def test_lists_of_rows_keep_what_the_reference_keeps() -> None:
    """Rows that share a range, one of nothing, ids beside, and with and without the entries that end."""
    tokens = np.array([3, 8, 9, 40, 2, 8], np.int32)
    start, stop = np.array([0, 4, 0, 2, 0]), np.array([4, 6, 4, 2, 3])
    ends = np.array([True, False, False, True, False, False])
    also, beside = np.array([True, False, True, False, False]), np.array([0, 9])
    for without in (False, True):
        lists = TokenLists(tokens, start, stop, ends, also, beside, without)
        packed = packed_lists(lists)
        assert len(packed[0]) <= 11
        words = fast.bits_of_lists(*(torch.from_numpy(a) for a in packed), 41)
        mine = torch.randn(5, 41)
        wanted = mine.clone()
        keep_listed(wanted, tokens, start, stop, ends, also, beside, without)
        fast.keep_bits(mine, torch.arange(5), words)
        assert torch.equal(mine, wanted)
