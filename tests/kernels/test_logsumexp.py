"""Copies of rows and single logits: the way of any device answers as the CPU's own does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from forkdecode_kernels.logsumexp import device_picked, device_rows, float_rows, picked_logits


def some_logits() -> torch.Tensor:
    """Row 1 holds NaN, row 2 +inf, row 3 nothing but -inf."""
    logits = torch.randn(5, 70, generator=torch.Generator().manual_seed(2)) * 5
    logits[1, 7], logits[2, 69], logits[3] = torch.nan, torch.inf, -torch.inf
    return logits


@pytest.mark.parametrize("normal", [False, True], ids=["as they are", "log-softmaxed"])
def test_rows_of_any_device_are_the_cpus(normal: bool) -> None:
    rows = np.array([4, 3, 0, 2, 1, 0])
    found = device_rows(some_logits(), rows, log_softmax=normal)
    wanted = float_rows(some_logits(), rows, log_softmax=normal)
    assert found.valid.tolist() == wanted.valid.tolist() == [True, True, True, False, False, True]
    fine = found.valid
    np.testing.assert_allclose(found.logsumexp[fine], wanted.logsumexp[fine], rtol=0, atol=1e-6)
    torch.testing.assert_close(found.values[fine], wanted.values[fine], rtol=0, atol=2e-6)
    assert found.values[1].isneginf().all()


def test_logits_are_picked_where_they_lie() -> None:
    rows, tokens = np.array([4, 0, 1, 0]), np.array([69, 0, 7, 0])
    logits = some_logits()
    wanted = [float(logits[r, t]) for r, t in zip(rows, tokens, strict=True)]
    for pick in (picked_logits, device_picked):
        found = pick(logits.to(torch.float32), rows, tokens)
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, wanted)


def test_rows_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"logits must be \[M, V\], not \(3,\)"):
        float_rows(torch.zeros(3), np.array([0]), log_softmax=False)
    with pytest.raises(ValueError, match=r"rows must be in 0 .. 1"):
        float_rows(torch.zeros(2, 4), np.array([-1]), log_softmax=False)
