"""What a step's attention would read of keys and values without sharing: from the tables' lengths alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from forkdecode.step import I64

KvLayers = Sequence[tuple[int | None, int]]
"""A model's layers by window: the window (None for none), and the bytes that the keys and values of one
token take in all layers of that window."""


@dataclass(slots=True)
class StepReads:
    """Collects what a step computes.

    Blocks are read whole from the first that a query sees. What a row computes at a time, one token or
    several, reads its context once. Beams are copied where there are several: one row has nothing to be
    reordered. A chunk of a prompt is the same for both counts, for nothing moves with it.
    """

    layers: KvLayers
    block_size: int
    _rows: list[int] = field(default_factory=list)
    _lengths: list[int] = field(default_factory=list)
    _computed: list[int] = field(default_factory=list)
    _copied: list[bool] = field(default_factory=list)
    _chunks: list[tuple[int, int]] = field(default_factory=list)

    def rows(
        self, rows: Sequence[int], lengths: Sequence[int], beams: Sequence[bool], computed: int = 1
    ) -> None:
        """Of several groups: how many rows, how long each is with its last `computed` tokens, which it
        computes, and whether they are beams, which are reordered."""
        self._rows += rows
        self._lengths += lengths
        self._computed += [computed] * len(rows)
        self._copied += beams

    def chunk(self, start: int, end: int) -> None:
        """One row computes its tokens start .. end."""
        self._chunks.append((start, end))

    def unshared(self) -> tuple[int, int]:
        """BytesMoved.naive and paged, of all layers."""
        rows, lengths, computed = _array(self._rows), _array(self._lengths), _array(self._computed)
        copied = _array(self._copied) * (rows > 1)
        naive = paged = 0
        for window, token in self.layers:
            seen = rows * (lengths - self._begins(lengths - computed, window))
            chunks = sum([end - self._begin(start, window) for start, end in self._chunks])
            read = int(seen.sum()) + chunks
            paged += read * token
            naive += (read + 2 * int(seen @ copied)) * token
        return naive, paged

    def _begins(self, positions: I64, window: int | None) -> I64:
        """Where the first block begins that queries at these positions see."""
        if window is None:
            return np.zeros_like(positions)
        begins: I64 = np.maximum(positions - window + 1, 0) // self.block_size * self.block_size
        return begins

    def _begin(self, position: int, window: int | None) -> int:
        """The same of one."""
        return 0 if window is None else max(0, position - window + 1) // self.block_size * self.block_size


def _array(values: Sequence[int]) -> I64:
    return np.fromiter(values, np.int64, len(values))
