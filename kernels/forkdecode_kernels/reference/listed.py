"""The best of what rows' lists hold, by a full sort: the specification of `listed_topk`."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.reference.allowed import I64, Bools, entries
from forkdecode_kernels.reference.logsumexp import row_logsumexp

F32 = NDArray[np.float32]
_EMPTY = np.empty(0, np.int64)
_NONE = np.empty(0, np.float32)


def listed_topk(
    logits: torch.Tensor,
    tokens: NDArray[np.int32],
    start: I64,
    stop: I64,
    ends: Bools,
    also: Bools,
    also_ids: I64,
    without_ends: bool,
    base: F32,
    k: int,
) -> tuple[I64, I64, I64, F32, F32, bool]:
    """logits [R, V], base [R] -> rows, tokens, entries, scores, logprobs [<= k], and whether no row has
    NaN or +inf. A token that is listed and also beside is one candidate, with the entry if it may be."""
    sums, fine = row_logsumexp(logits)
    if not bool(fine.all()):
        return _EMPTY, _EMPTY, _EMPTY, _NONE, _NONE, False
    row, at = entries(start, stop)
    if without_ends and len(ends):
        row, at = row[~ends[at]], at[~ends[at]]
    others, beside = np.flatnonzero(also), np.unique(also_ids)
    rows = np.concatenate([row, np.repeat(others, len(beside))])
    ids = np.concatenate([tokens[at].astype(np.int64), np.tile(beside, len(others))])
    place = np.concatenate([at, np.full(len(others) * len(beside), -1)])
    # The listed ones stand first, so that of two equal ones the first is the entry.
    _, first = np.unique(rows * logits.shape[1] + ids, return_index=True)
    rows, ids, place = rows[first], ids[first], place[first]
    where = (torch.from_numpy(rows).to(logits.device), torch.from_numpy(ids).to(logits.device))
    shift = torch.where(sums.isneginf(), 0.0, sums)
    logprobs = (logits[where].double() - shift[where[0]]).float()
    scores = torch.from_numpy(base).to(logits.device)[where[0]] + logprobs
    order = torch.sort(scores, descending=True, stable=True).indices[:k]
    order = order[~scores[order].isneginf()]
    best = order.cpu().numpy()
    return (
        rows[best],
        ids[best],
        place[best],
        scores[order].cpu().numpy(),
        logprobs[order].cpu().numpy(),
        True,
    )
