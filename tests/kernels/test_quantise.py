"""Quantised rows: as the specification has them, row by row, and not finite where the row is not."""

from __future__ import annotations

import pytest
import torch

from forkdecode_kernels.quantise import ZERO, quantise_rows
from forkdecode_kernels.reference.quantise import quantise_rows as reference


def rows(dtype: torch.dtype, count: int = 64, width: int = 133) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    scale = torch.logspace(-34, 30, count)[:, None]
    x = torch.randn(count, width, generator=generator) * scale
    x[3] = 0.0
    x[10, 7], x[11, 0], x[12, 132] = torch.nan, -torch.inf, torch.inf
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_specification(dtype: torch.dtype) -> None:
    x = rows(dtype)
    codes, scale = quantise_rows(x)
    want, want_scale = reference(x)
    assert torch.equal(codes, want)
    assert torch.equal(scale.nan_to_num(-1.0), want_scale.nan_to_num(-1.0))
    assert scale.isnan().nonzero().ravel().tolist() == [10, 11, 12]


def test_is_off_by_half_a_code_at_most() -> None:
    x = rows(torch.float32)
    codes, scale = quantise_rows(x)
    back = (codes.double() - ZERO) * scale[:, None]
    fine = scale.isfinite() & (scale > 0)
    assert int(fine.sum()) > 50
    assert bool(((back - x).abs() <= scale[:, None] * 0.5001)[fine].all())
    assert codes.min() >= 1


def test_refuses_other_shapes() -> None:
    with pytest.raises(ValueError, match="x is"):
        quantise_rows(torch.zeros(2, 3, 4))
