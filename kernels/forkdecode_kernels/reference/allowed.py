"""Masks by lists and by bits, the obvious way: the specification of `forkdecode_kernels.allowed`."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]


def entries(start: I64, stop: I64) -> tuple[I64, I64]:
    """The entries of each row's range, one row after the other: the row of each, and its place."""
    counts = np.maximum(stop - start, 0)
    row = np.repeat(np.arange(len(start)), counts)
    first = np.cumsum(counts) - counts
    return row, np.arange(len(row)) - first[row] + start[row]


def keep_listed(
    values: torch.Tensor,
    tokens: NDArray[np.int32],
    start: I64,
    stop: I64,
    ends: Bools,
    also: Bools,
    also_ids: I64,
    without_ends: bool,
) -> None:
    """values [R, V]: all but the listed tokens of each row become -inf."""
    row, at = entries(start, stop)
    if without_ends and len(ends):
        row, at = row[~ends[at]], at[~ends[at]]
    others = np.flatnonzero(also)
    rows = np.concatenate([row, np.repeat(others, len(also_ids))])
    ids = np.concatenate([tokens[at].astype(np.int64), np.tile(also_ids, len(others))])
    where = (torch.from_numpy(rows).to(values.device), torch.from_numpy(ids).to(values.device))
    kept = values[where]
    values.fill_(-torch.inf)
    values[where] = kept


def keep_bits(values: torch.Tensor, words: NDArray[np.uint32]) -> None:
    """values [R, V]: token t of row r becomes -inf unless bit t % 32 of words[r, t // 32] is set."""
    packed = torch.from_numpy(words.astype(np.int64)).to(values.device)
    bits = packed[:, :, None] >> torch.arange(32, device=values.device) & 1
    values.masked_fill_(bits.reshape(len(words), -1)[:, : values.shape[1]] == 0, -torch.inf)


def find_entries(tokens: NDArray[np.int32], start: I64, stop: I64, wanted: I64) -> I64:
    """[N] The place of wanted[i] in tokens[start[i] : stop[i]], which ascend; -1 where it is not there."""
    found = np.full(len(wanted), -1, np.int64)
    for i, token in enumerate(wanted):
        listed = tokens[start[i] : stop[i]]
        at = int(np.searchsorted(listed, token))
        if at < len(listed) and listed[at] == token:
            found[i] = start[i] + at
    return found


def count_open(start: I64, stop: I64, ends: Bools) -> int:
    """How many entries of the ranges end nothing."""
    _, at = entries(start, stop)
    return len(at) - (int(ends[at].sum()) if len(ends) else 0)
