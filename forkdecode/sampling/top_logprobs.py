"""The most likely tokens of each row, raw and processed, for requests that ask for log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from forkdecode_kernels.topk import RowGroups, beam_topk

from forkdecode.step import F32, I64, TopLogprobs


def row_top(values: torch.Tensor, k: int, *, normalized: bool, threads: int) -> tuple[I64, F32]:
    """values [R, V] -> ids [R, k] and log-probabilities [R, k], best first, ties to the lower id.

    Where a row has fewer legal tokens than k, the rest is id -1 with -inf.
    """
    count = len(values)
    ids = np.full((count, k), -1, np.int64)
    logprobs = np.full((count, k), -np.inf, np.float32)
    if k == 0:
        return ids, logprobs
    groups = RowGroups(np.arange(count), np.ones(count, np.int64), np.full(count, k, np.int64))
    best = beam_topk(values, groups, np.zeros(count, np.float32), normalized=normalized, threads=threads)
    for row, found in enumerate(best):
        ids[row, : len(found.tokens)] = found.tokens
        logprobs[row, : len(found.tokens)] = found.logprobs
    return ids, logprobs


def joined(parts: Sequence[TopLogprobs]) -> TopLogprobs:
    """Row chunks of one group, in order, as one."""
    if len(parts) == 1:
        return parts[0]
    return TopLogprobs(
        np.concatenate([p.raw_ids for p in parts]),
        np.concatenate([p.raw for p in parts]),
        np.concatenate([p.processed_ids for p in parts]),
        np.concatenate([p.processed for p in parts]),
    )
