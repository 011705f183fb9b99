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


def log_softmax(logits: torch.Tensor, logsumexp: torch.Tensor) -> torch.Tensor:
    """float32(logits - logsumexp[:, None]), subtracted in float64; rows of nothing but -inf stay that."""
    shift = torch.where(logsumexp.isneginf(), 0.0, logsumexp)
    return (logits.double() - shift[:, None]).float()
