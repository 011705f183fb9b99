"""Finished hypotheses: a batch of them as columns, and the pool that keeps the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from forkdecode.results import FinishReason
from forkdecode.step import F32, I32, I64

F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]

LIVE, EOS, STOP, LENGTH, CANCELLED = range(5)
REASONS: tuple[FinishReason | None, ...] = (None, "eos", "stop", "length", "cancelled")
"""finish_reason by code; code 0 is a candidate that lives on."""


@dataclass(frozen=True, slots=True)
class HypothesisBatch:
    """N finished hypotheses.

    Their tokens are those of row `row` before the step that finished them, and `token` (see
    History.paths). generated [N]: tokens in all, the last included. pick [N]: index in that step's
    SelectionResult. logprob, selection_logprob [N]: the last token's. cumulative, selection [N]:
    sums over all tokens, raw and processed. score [N]: what they are ranked by. reason [N]: see
    REASONS. candidate [N]: which sample each is.
    """

    generated: I32
    row: I32
    pick: I64
    token: I64
    logprob: F32
    selection_logprob: F32
    cumulative: F64
    selection: F32
    score: F64
    reason: U8
    candidate: I32

    def __len__(self) -> int:
        return len(self.generated)

    def __getitem__(self, index: I64 | slice) -> HypothesisBatch:
        """The hypotheses that `index` names, in its order."""
        return HypothesisBatch(*(getattr(self, name)[index] for name in _COLUMNS))

    def concat(self, other: HypothesisBatch) -> HypothesisBatch:
        """These, then the others."""
        return HypothesisBatch(
            *(np.concatenate([getattr(self, name), getattr(other, name)]) for name in _COLUMNS)
        )

    @staticmethod
    def joined(batches: Sequence[HypothesisBatch]) -> HypothesisBatch:
        """All of them, in order; at least one."""
        return HypothesisBatch(*(np.concatenate([getattr(b, name) for b in batches]) for name in _COLUMNS))


_COLUMNS = tuple(f.name for f in fields(HypothesisBatch))
_DTYPES = ("i4", "i4", "i8", "i8", "f4", "f4", "f8", "f4", "f8", "u1", "i4")
NO_HYPOTHESES = HypothesisBatch(*(np.empty(0, dtype) for dtype in _DTYPES))


class Hypotheses:
    """The `limit` best finished hypotheses, best first; of equal scores the earlier stays ahead.

    Between steps earlier means an earlier step, within one its order in the batch.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = NO_HYPOTHESES

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def full(self) -> bool:
        return len(self._kept) == self._limit

    @property
    def worst(self) -> float:
        """The lowest score kept; the pool must not be empty."""
        return float(self._kept.score[-1])

    def add(self, batch: HypothesisBatch) -> HypothesisBatch:
        """Keeps the best of what is here and `batch`; returns those of `batch` that are kept."""
        if self.full and len(batch):
            # An equal score is later than all of the pool, so it loses.
            batch = batch[np.flatnonzero(batch.score > self.worst)]
        if not len(batch):
            return batch
        old = len(self._kept)
        merged = self._kept.concat(batch) if old else batch
        order = np.argsort(-merged.score, kind="stable")[: self._limit]
        self._kept = merged[order]
        if len(order) == len(merged):
            return batch
        return batch[np.sort(order[order >= old]) - old]

    def keep(self, n: int) -> None:
        """Drops all but the n best."""
        if n < len(self._kept):
            self._kept = self._kept[:n]

    def best(self, n: int | None = None) -> HypothesisBatch:
        """The n best, or all, best first."""
        return self._kept if n is None else self._kept[:n]
