"""log sum exp of each row, the obvious way."""

from __future__ import annotations

import torch


def row_logsumexp(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [M, V] -> logsumexp [M] float64, valid [M] bool (no NaN, no +inf).

    A row of nothing but -inf is valid and has logsumexp -inf.
    """
    wide = logits.double()
    valid = ~(wide.isnan() | wide.isposinf()).any(-1)
    return torch.logsumexp(wide, -1), valid


def subtracted(logits: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """float32(logits - shift[:, None]), subtracted in float64."""
    return (logits.double() - shift[:, None]).float()
