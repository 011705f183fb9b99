"""Copies of rows, their sums, and masks of them, against torch's own operations and the references."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from forkdecode_kernels.allowed import TokenLists, packed_lists
from forkdecode_kernels.reference.allowed import keep_bits as reference_bits
from forkdecode_kernels.reference.allowed import keep_listed
from forkdecode_kernels.reference.logsumexp import log_softmax, row_logsumexp
from forkdecode_kernels.triton import float_rows as fast

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


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
