"""The best continuations of each row by itself, in one list: log-softmax, running score, top-k a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.calls import Steps, alone, in_parts, taken
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
    raw [N]: log-softmax of the logits before any change, of a device's selection alone.
    """

    row: NDArray[np.int64]
    token: NDArray[np.int64]
    score: NDArray[np.float32]
    logprob: NDArray[np.float32]
    valid: NDArray[np.bool_]
    raw: NDArray[np.float32] | None = None


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
    if logits.device.type == "cuda":
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
    """`row_candidates` on a device. One copy to it and one back."""
    return alone(rows_call(rows, k, base, logits.shape[1], normalized=normalized), logits)


@in_parts
def rows_call(
    rows: NDArray[np.int64],
    k: NDArray[np.int64],
    base: NDArray[np.float32],
    vocab: int,
    *,
    normalized: bool,
) -> Steps[RowCandidates]:
    """`row_candidates` on a device, in parts: by the kernels of beam_topk for a k that the number of tiles
    bounds well, by sorts for others. Which it is depends on the row alone."""
    bounded = 2 * k <= -(-vocab // ROW_TILE)
    ways = ((bounded_call, np.flatnonzero(bounded)), (sorted_call, np.flatnonzero(~bounded)))
    parts = [
        (way(rows[at], k[at], base[at], vocab, normalized=normalized), at) for way, at in ways if len(at)
    ]
    source, sent = yield [a for part, _ in parts for a in part.arrays]
    take = taken(sent)
    tensors = [part.launch(source, take(len(part.arrays))) for part, _ in parts]
    take = taken((yield [t for each in tensors for t in each]))
    found = [(part.read(take(len(each))), at) for (part, at), each in zip(parts, tensors, strict=True)]
    return found[0][0] if len(found) == 1 else _in_order(found)


def _in_order(parts: list[tuple[RowCandidates, NDArray[np.int64]]]) -> RowCandidates:
    """Parts of some rows each, `at` them, as one list row after row."""
    row = np.concatenate([at[part.row] for part, at in parts])
    order = np.argsort(row, kind="stable")
    valid = np.empty(sum(len(at) for _, at in parts), np.bool_)
    for part, at in parts:
        valid[at] = part.valid

    def column(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part, _ in parts])[order]

    return RowCandidates(
        row[order], column("token"), column("score"), column("logprob"), valid, column("raw")
    )


@in_parts
def bounded_call(
    rows: NDArray[np.int64],
    k: NDArray[np.int64],
    base: NDArray[np.float32],
    vocab: int,
    *,
    normalized: bool,
) -> Steps[RowCandidates]:
    """By the Triton kernels of beam_topk, each row a group of its own."""
    from forkdecode_kernels.triton import beam_topk as fast
    from forkdecode_kernels.triton.packed_order import EMPTY, unpacked

    part = fast.beam_topk(
        rows,
        np.ones_like(rows),
        np.minimum(k, vocab),
        base,
        vocab,
        normalized=normalized,
        tile=ROW_TILE,
        capacity=max(ROW_CAPACITY, 4 * int(k.max())),
    )
    source, sent = yield part.arrays
    told = yield part.launch(source, sent)
    found = part.read(told)
    listed = (found.packed != EMPTY) & (np.arange(found.packed.shape[1]) < k[:, None])
    listed &= found.valid[:, None]
    row, _ = np.nonzero(listed)
    _, token, score = unpacked(found.packed[listed], vocab)
    return RowCandidates(row, token, score, found.logprobs[listed], found.valid, found.raw[listed])


@in_parts
def sorted_call(
    rows: NDArray[np.int64],
    k: NDArray[np.int64],
    base: NDArray[np.float32],
    vocab: int,
    *,
    normalized: bool,
) -> Steps[RowCandidates]:
    """By a sort of each row, a bounded number of rows at a time."""
    most = min(int(k.max()), vocab)
    source, sent = yield [rows, base]
    step = max(1, CHUNK_ELEMENTS // vocab)
    places = torch.split(sent[0], step)
    parts = [
        reference.best_of_sorted(source.values[at], b, most, normalized=normalized)
        for at, b in zip(places, torch.split(sent[1], step), strict=True)
    ]
    tokens, scores, logprobs, valid = (torch.cat(p) for p in zip(*parts, strict=True))
    raw = source.raw_logprobs(sent[0][:, None], tokens, logprobs)
    tokens, scores, logprobs, fine, raw = yield [tokens, scores, logprobs, valid, raw]
    listed = (np.arange(most) < k[:, None]) & (scores > -np.inf)
    row, _ = np.nonzero(listed)
    return RowCandidates(row, tokens[listed], scores[listed], logprobs[listed], fine, raw[listed])


def sorted_rows(
    logits: torch.Tensor,
    rows: NDArray[np.int64],
    k: NDArray[np.int64],
    base: NDArray[np.float32],
    *,
    normalized: bool,
) -> RowCandidates:
    """`row_candidates` by a sort of each row, on any device."""
    return alone(sorted_call(rows, k, base, logits.shape[1], normalized=normalized), logits)


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
