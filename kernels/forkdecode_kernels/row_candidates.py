"""The best continuations of each row by itself, in one list: log-softmax, running score, top-k a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.row_best import best_of_rows
from forkdecode_kernels.reference import row_candidates as reference

CHUNK_ELEMENTS = 1 << 25
"""Logits that are sorted together, away from the CPU: some 30 bytes each."""
ROW_TILE = 1024
"""Tokens of a tile: a row has as many that its best are bounded by."""
ROW_CAPACITY = 1024
"""Candidates that a row's list has room for, at least."""


@dataclass(frozen=True, slots=True)
class RowCandidates:
    """N candidates of m rows: row after row, best first, of equals the lower token.

    row [N]: which of the m. valid [m]: the row has neither NaN nor +inf; it has no candidates otherwise.
    """

    row: NDArray[np.int64]
    token: NDArray[np.int64]
    score: NDArray[np.float32]
    logprob: NDArray[np.float32]
    valid: NDArray[np.bool_]


def row_candidates(
    logits: torch.Tensor,
    rows: NDArray[np.int64],
    k: NDArray[np.int64],
    base: NDArray[np.float32],
    *,
    normalized: bool = False,
    threads: int = 1,
) -> RowCandidates:
    """The k[i] best continuations of each logits[rows[i]]; -inf is never listed, so there may be fewer.

    logits [M, V], any float type; rows, k, base [m]. score = float32(base + logprob), logprob =
    float32(logit - logsumexp(row)), or the logit itself when `normalized`. Exact, and a row's candidates
    depend on it alone, bit for bit.
    """
    _check(logits, rows, k, base)
    if logits.device.type == "cpu":
        return RowCandidates(*best_of_rows(logits, rows, k, base, normalized=normalized, threads=threads))
    if logits.device.type == "cuda" and 2 * k.max() <= -(-logits.shape[1] // ROW_TILE):
        return gpu_rows(logits, rows, k, base, normalized=normalized)
    return sorted_rows(logits, rows, k, base, normalized=normalized)


def gpu_rows(
    logits: torch.Tensor,
    rows: NDArray[np.int64],
    k: NDArray[np.int64],
    base: NDArray[np.float32],
    *,
    normalized: bool,
) -> RowCandidates:
    """`row_candidates` by the Triton kernels of beam_topk, each row a group of its own: for a k that the
    number of tiles bounds well."""
    from forkdecode_kernels.triton import beam_topk as fast
    from forkdecode_kernels.triton.packed_order import EMPTY, unpacked

    vocab = logits.shape[1]
    found = fast.beam_topk(
        logits,
        rows,
        np.ones_like(rows),
        np.minimum(k, vocab),
        base,
        normalized=normalized,
        tile=ROW_TILE,
        capacity=max(ROW_CAPACITY, 4 * int(k.max())),
    )
    listed = (found.packed != EMPTY) & (np.arange(found.packed.shape[1]) < k[:, None])
    listed &= found.valid[:, None]
    row, _ = np.nonzero(listed)
    _, token, score = unpacked(found.packed[listed], vocab)
    return RowCandidates(row, token, score, found.logprobs[listed], found.valid)


def sorted_rows(
    logits: torch.Tensor,
    rows: NDArray[np.int64],
    k: NDArray[np.int64],
    base: NDArray[np.float32],
    *,
    normalized: bool,
) -> RowCandidates:
    """`row_candidates` by a sort of each row, on any device, a bounded number of rows at a time."""
    step = max(1, CHUNK_ELEMENTS // logits.shape[1])
    parts = []
    for first in range(0, len(rows), step):
        own = slice(first, first + step)
        found = reference.row_candidates(logits, rows[own], k[own], base[own], normalized=normalized)
        parts.append((first, RowCandidates(*found)))
    return _joined(parts)


def _joined(parts: list[tuple[int, RowCandidates]]) -> RowCandidates:
    if len(parts) == 1:
        return parts[0][1]
    found = [part for _, part in parts]
    return RowCandidates(
        np.concatenate([part.row + first for first, part in parts]),
        np.concatenate([part.token for part in found]),
        np.concatenate([part.score for part in found]),
        np.concatenate([part.logprob for part in found]),
        np.concatenate([part.valid for part in found]),
    )


def _check(
    logits: torch.Tensor, rows: NDArray[np.int64], k: NDArray[np.int64], base: NDArray[np.float32]
) -> None:
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits must be [M, V], not {tuple(logits.shape)}")
    if not len(rows) or not rows.shape == k.shape == base.shape or base.dtype != np.float32:
        raise ValueError(
            f"rows {rows.shape}, k {k.shape} and float32 base {base.dtype} {base.shape} must agree"
        )
    if rows.min() < 0 or rows.max() >= len(logits):
        raise ValueError(f"rows reach outside the {len(logits)} of logits")
    if k.min() < 1:
        raise ValueError("k must be 1 or more")
