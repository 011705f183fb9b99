"""Perturbed top-k on the device against its specification, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from forkdecode_kernels.perturbed import PerturbedRows, gpu_topk
from forkdecode_kernels.reference.perturbed import perturbed_row
from forkdecode_kernels.triton import perturbed as fast
from tests.kernels.test_perturbed import asked, table


def check(logprobs: NDArray[np.float32], wanted: PerturbedRows) -> None:
    found = gpu_topk(torch.from_numpy(logprobs), wanted)
    for row in range(len(logprobs)):
        tokens, perturbed = perturbed_row(
            logprobs[row],
            wanted.base[row],
            wanted.maximum[row],
            int(wanted.lineage[row]),
            int(wanted.position[row]),
            int(wanted.k[row]),
        )
        own = found.rows == row
        assert found.tokens[own].tolist() == tokens.tolist()
        np.testing.assert_allclose(found.perturbed[own], perturbed, rtol=1e-12)
        np.testing.assert_array_equal(found.logprobs[own], logprobs[row, tokens])


@pytest.mark.parametrize("maximum", [np.inf, -4.0])
@pytest.mark.parametrize(("vocab", "k", "masked"), [(1500, 40, 0.99), (90, 200, 0.0)])
def test_rows_equal_the_reference(vocab: int, k: int, masked: float, maximum: float) -> None:
    check(table(3, 3, vocab, masked=masked), asked(5, 3, [k, 1, k], maximum))


@settings(max_examples=15)
@given(
    st.integers(0, 2**31),
    st.integers(1, 700),
    st.lists(st.integers(1, 60), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.5, 0.99]),
    st.sampled_from([np.inf, 3.0, -9.0]),
)
def test_any_rows(seed: int, vocab: int, k: list[int], masked: float, maximum: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "TILE", 128)
        check(table(seed, len(k), vocab, masked=masked), asked(seed, len(k), k, maximum))


def test_what_can_not_be_drawn_is_not_listed() -> None:
    """-inf and NaN; a row of nothing else has no continuation."""
    logprobs = torch.tensor(
        [[-torch.inf, -1e6, torch.nan, -0.1], [-torch.inf, torch.nan, -torch.inf, -torch.inf]]
    )
    found = gpu_topk(logprobs, asked(1, 2, 4))
    assert (found.rows.tolist(), found.tokens.tolist()) == ([0, 0], [3, 1])


def test_rows_that_are_strided_and_none_at_all() -> None:
    wide = torch.from_numpy(table(2, 4, 300))
    every, wanted = gpu_topk(wide, asked(1, 4, 3)), asked(1, 4, 3)
    assert gpu_topk(wide.repeat(1, 2)[:, :300], wanted).tokens.tolist() == every.tokens.tolist()
    assert len(gpu_topk(wide[:0], asked(1, 0, 3)).rows) == 0
