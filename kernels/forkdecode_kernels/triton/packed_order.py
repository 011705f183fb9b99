"""Candidates as 64-bit integers that sort by score, then row, then token; the plain way to their top k."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

EMPTY = torch.iinfo(torch.int64).max
"""Sorts behind every candidate."""

CHUNK_ELEMENTS = 1 << 25
"""Candidates that `dense_best` lays out at a time: 256 MB."""


def packed(scores: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """scores float32, index int64 below 2^32 -> int64, ascending from the best; EMPTY for -inf."""
    bits = torch.where(scores == 0, 0.0, scores).view(torch.int32).long()
    key = torch.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    return torch.where(scores == -torch.inf, EMPTY, ((-1 - key) << 32) | index)


def dense_best(
    logits: torch.Tensor, rows: torch.Tensor, base: torch.Tensor, shift: torch.Tensor, k: int
) -> torch.Tensor:
    """The k best of base + (logits[rows] - shift), packed, ascending, EMPTY at the end.

    Selects over all candidates: for groups whose candidates are too few for a bound, or too many.
    """
    vocab = logits.shape[1]
    token = torch.arange(vocab, device=logits.device)
    step = max(1, CHUNK_ELEMENTS // vocab)
    best = torch.full((k,), EMPTY, dtype=torch.int64, device=logits.device)
    for first in range(0, len(rows), step):
        some = rows[first : first + step].long()
        last = first + len(some)
        logprobs = (logits[some].double() - shift[first:last, None]).float()
        local = torch.arange(first, last, device=logits.device)[:, None] * vocab + token
        fresh = packed(base[first:last, None] + logprobs, local).flatten()
        best = torch.topk(torch.cat([best, fresh]), k, largest=False, sorted=True).values
    return best


def unpacked(
    candidates: NDArray[np.int64], vocab: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """rows, tokens and scores of packed candidates, on the host."""
    local, key = candidates & 0xFFFFFFFF, (-1 - (candidates >> 32)).astype(np.int32)
    scores = np.where(key >= 0, key, key ^ np.int32(0x7FFFFFFF)).astype(np.int32).view(np.float32)
    return local // vocab, local % vocab, scores
