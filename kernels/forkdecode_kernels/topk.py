"""The best continuations of each group of rows: log-softmax, running score and top-k in one operation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.calls import Steps, alone, in_parts
from forkdecode_kernels.cpu.selection import topk as cpu
from forkdecode_kernels.cpu.selection.row_best import best_of_rows
from forkdecode_kernels.reference import logsumexp as reference_sums
from forkdecode_kernels.reference import topk as reference


@dataclass(frozen=True, slots=True)
class RowGroups:
    """G groups of consecutive rows: group i is rows start[i] .. start[i] + count[i], and wants k[i]."""

    start: NDArray[np.int64]
    count: NDArray[np.int64]
    k: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class Continuations:
    """One group's best, ordered by score, then row, then token. rows count from the group's first row.

    valid: no row has NaN or +inf; the arrays are empty otherwise. raw [N]: log-softmax of the
    logits before any change, of a device's selection alone.
    """

    rows: NDArray[np.int64]
    tokens: NDArray[np.int64]
    scores: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    valid: bool
    raw: NDArray[np.float32] | None = None


_INVALID = Continuations(
    np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.float32), False
)


def beam_topk(
    logits: torch.Tensor,
    groups: RowGroups,
    base: NDArray[np.float32],
    *,
    normalized: bool = False,
    threads: int = 1,
) -> list[Continuations]:
    """The k best continuations of every group.

    logits [M, V], any float type; base [sum of count] float32, the running scores, group by group.
    score = float32(base + logprob), logprob = float32(logit - logsumexp(row)), or the logit itself when
    `normalized`. -inf is never listed, so a group may get fewer than k. Exact, and a group's answer
    depends on its own rows alone, bit for bit, whatever `threads` is.
    """
    _check(logits, groups, base)
    if len(groups) == 0:
        return []
    if logits.device.type == "cpu":
        return _cpu_groups(logits, groups, base, normalized, threads)
    if logits.device.type == "cuda":
        return gpu_groups(logits, groups, base, normalized)
    ends = np.cumsum(groups.count)
    return [
        reference_group(logits[start : start + count], base[end - count : end], int(k), normalized)
        for start, count, k, end in zip(groups.start, groups.count, groups.k, ends, strict=True)
    ]


def reference_group(
    logits: torch.Tensor, base: NDArray[np.float32], k: int, normalized: bool
) -> Continuations:
    """One group by a full sort, on any device. logits [R, V], base [R] float32."""
    lse, valid = reference_sums.row_logsumexp(logits)
    if not bool(valid.all()):
        return _INVALID
    if normalized:
        lse = torch.zeros_like(lse)
    bases = torch.from_numpy(base).to(logits.device)
    best = reference.group_topk(logits.float(), bases, lse, k)
    rows, tokens, scores, logprobs = (t.cpu().numpy() for t in best)
    return Continuations(rows, tokens, scores, logprobs, True)


def row_topk(
    logits: torch.Tensor, k: int, *, normalized: bool = False, threads: int = 1
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The k likeliest tokens of each row: ids [M, k] and log-probabilities [M, k], best first.

    logits [M, V], or log-probabilities if `normalized`. Ties go to the lower id. Where a row has
    fewer tokens above -inf than k, or NaN or +inf, the rest is id -1 with -inf.
    """
    count = len(logits)
    ids = np.full((count, k), -1, np.int64)
    logprobs = np.full((count, k), -np.inf, np.float32)
    if k == 0 or count == 0:
        return ids, logprobs
    groups = RowGroups(np.arange(count), np.ones(count, np.int64), np.full(count, k))
    base = np.zeros(count, np.float32)
    _check(logits, groups, base)
    if logits.device.type == "cpu":
        each = np.arange(count)
        row, token, _, logprob, _ = best_of_rows(
            logits, each, groups.k, base, normalized=normalized, threads=threads
        )
        rank = cpu.ranks(row)
        ids[row, rank], logprobs[row, rank] = token, logprob
        return ids, logprobs
    for i, best in enumerate(beam_topk(logits, groups, base, normalized=normalized)):
        ids[i, : len(best.tokens)], logprobs[i, : len(best.tokens)] = best.tokens, best.logprobs
    return ids, logprobs


def _cpu_groups(
    logits: torch.Tensor, groups: RowGroups, base: NDArray[np.float32], normalized: bool, threads: int
) -> list[Continuations]:
    group, row, token, score, logprob, fine = _cpu_flat(logits, groups, base, normalized, threads)
    edges = np.searchsorted(group, np.arange(len(groups) + 1))
    return [
        Continuations(row[a:b] - start, token[a:b], score[a:b], logprob[a:b], True) if ok else _INVALID
        for a, b, start, ok in zip(edges[:-1], edges[1:], groups.start, fine, strict=True)
    ]


def _cpu_flat(
    logits: torch.Tensor, groups: RowGroups, base: NDArray[np.float32], normalized: bool, threads: int
) -> tuple[*cpu.Flat, NDArray[np.bool_]]:
    """Candidates of all groups in one list, and which groups are valid."""
    rows = np.repeat(groups.start - np.cumsum(groups.count) + groups.count, groups.count)
    rows += np.arange(len(rows))
    tiles, lse, valid = cpu.summed_rows(logits, rows, normalized=normalized, threads=threads)
    fine = np.logical_and.reduceat(valid, np.cumsum(groups.count) - groups.count)
    k = np.where(fine, np.minimum(groups.k, groups.count * logits.shape[1]), 0)
    return *cpu.best_candidates(logits, rows, groups.count, k, base, tiles, lse), fine


def gpu_groups(
    logits: torch.Tensor, groups: RowGroups, base: NDArray[np.float32], normalized: bool
) -> list[Continuations]:
    """`beam_topk` by the Triton kernels. One copy to the device and one back."""
    return alone(groups_call(groups, base, logits.shape[1], normalized=normalized), logits)


@in_parts
def groups_call(
    groups: RowGroups, base: NDArray[np.float32], vocab: int, *, normalized: bool
) -> Steps[list[Continuations]]:
    """`beam_topk` on a device, in parts."""
    from forkdecode_kernels.triton import beam_topk as fast
    from forkdecode_kernels.triton.packed_order import EMPTY, unpacked

    k = np.minimum(groups.k, groups.count * vocab)
    part = fast.beam_topk(groups.start, groups.count, k, base, vocab, normalized=normalized)
    source, sent = yield part.arrays
    told = yield part.launch(source, sent)
    found = part.read(told)
    result = []
    for g, (wanted, fine) in enumerate(zip(k, found.valid, strict=True)):
        own = slice(int((found.packed[g, :wanted] != EMPTY).sum()))
        chosen = unpacked(found.packed[g, own], vocab)
        whole = Continuations(*chosen, found.logprobs[g, own], True, found.raw[g, own])
        result.append(whole if fine else _INVALID)
    return result


def warm_up(device: torch.device, vocab: int) -> None:
    """Has ready on a GPU what beams of any width take besides what those of two rows do."""
    from forkdecode_kernels.triton import beam_topk as fast

    fast.warm_up(device, vocab)


def _check(logits: torch.Tensor, groups: RowGroups, base: NDArray[np.float32]) -> None:
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits must be [M, V], not {tuple(logits.shape)}")
    if base.shape != (int(groups.count.sum()),) or base.dtype != np.float32:
        raise ValueError(f"base must be float32 [{int(groups.count.sum())}], not {base.dtype} {base.shape}")
    if len(groups) == 0:
        return
    if (
        groups.count.min() < 1
        or groups.start.min() < 0
        or (groups.start + groups.count).max() > logits.shape[0]
    ):
        raise ValueError(f"groups reach outside the {logits.shape[0]} rows of logits")
    if groups.k.min() < 1:
        raise ValueError("k must be 1 or more")
