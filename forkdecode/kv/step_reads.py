"""What a step's attention reads of keys and values, and would read without sharing: from the tables alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from forkdecode.kv.block_pool import BlockPool
from forkdecode.kv.block_table import BlockTable
from forkdecode.kv.bytes_moved import BytesMoved
from forkdecode.step import I32

KvLayers = Sequence[tuple[int | None, int]]
"""A model's layers by window: the window (None for none), and the bytes that the keys and values of one
token take in all layers of that window."""


@dataclass(slots=True)
class StepReads:
    """Collects what a step computes; `moved` counts it, before tables change again.

    Blocks are read whole from the first that a query sees. What a row computes at a time, one token or
    several, reads its context once. A chunk of a prompt is the same for all three counts, for nothing
    moves with it; partial results, which a GPU writes and reads where it splits a context, are in none.
    """

    layers: KvLayers
    pool: BlockPool
    _rows: list[tuple[BlockTable, int]] = field(default_factory=list)
    _chunks: list[tuple[int, int]] = field(default_factory=list)

    def rows(self, table: BlockTable, count: int = 1) -> None:
        """All rows of `table` compute their last `count` tokens."""
        self._rows.append((table, count))

    def chunk(self, start: int, end: int) -> None:
        """One row computes its tokens start .. end."""
        self._chunks.append((start, end))

    def moved(self) -> BytesMoved:
        """Of all layers."""
        naive = paged = forest = 0
        for window, token in self.layers:
            chunks, alone, together = self._chunk_tokens(window), 0, 0
            begins = self._begins(window)
            for (table, _), begin in zip(self._rows, begins, strict=True):
                alone += len(table.tails) * (table.length - begin)
                together += table.unique_tokens(begin)
            if len(self._rows) > 1:
                together -= self._repeated(begins)
            naive += (chunks + 3 * alone) * token
            paged += (chunks + alone) * token
            forest += (chunks + together) * token
        return BytesMoved(naive, paged, forest)

    def _chunk_tokens(self, window: int | None) -> int:
        """Of all chunks, with what lies before them."""
        if window is None:
            return sum([end for _, end in self._chunks])
        return sum([end - self._seen(start, window) for start, end in self._chunks])

    def _begins(self, window: int | None) -> list[int]:
        """The first token that each table's rows read."""
        if window is None:
            return [0] * len(self._rows)
        return [self._seen(table.length - count, window) for table, count in self._rows]

    def _seen(self, position: int, window: int) -> int:
        """The first token of the first block that a query at `position` sees."""
        return max(0, position - window + 1) // self.pool.block_size * self.pool.block_size

    def _repeated(self, begins: Sequence[int]) -> int:
        """Tokens of blocks that several tables have in their trunks, counted but for the first time."""
        # Tables share blocks from the first one on, or none.
        heads = [table.head for table, _ in self._rows]
        if len(set(heads)) == len(heads):
            return 0
        size = self.pool.block_size
        sharers: dict[int, list[I32]] = defaultdict(list)
        for head, (table, _), begin in zip(heads, self._rows, begins, strict=True):
            if head is not None:
                sharers[head].append(table.trunk[begin // size :])
        repeated = 0
        for trunks in sharers.values():
            if len(trunks) > 1:
                blocks = np.concatenate(trunks)
                repeated += len(blocks) - int(np.count_nonzero(self.pool.occurrences.one_each(blocks)))
        return repeated * size
