"""What a step's attention reads of keys and values, and would read without sharing: from the tables alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from forkdecode.kv.block_pool import BlockPool
from forkdecode.kv.block_table import BlockTable
from forkdecode.kv.bytes_moved import BytesMoved
from forkdecode.step import I64

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
        tables = _Tables.of(self.pool, self._rows)
        for window, token in self.layers:
            chunks, alone, together = self._chunk_tokens(window), *tables.tokens(window)
            naive += (chunks + 3 * alone) * token
            paged += (chunks + alone) * token
            forest += (chunks + together) * token
        return BytesMoved(naive, paged, forest)

    def _chunk_tokens(self, window: int | None) -> int:
        """Of all chunks, with what lies before them."""
        if window is None:
            return sum([end for _, end in self._chunks])
        size = self.pool.block_size
        return sum([end - max(0, start - window + 1) // size * size for start, end in self._chunks])


@dataclass(frozen=True, slots=True)
class _Tables:
    """What all tables of a step have, in arrays [n].

    computed: how many tokens each computes in a row. unique, last: see BlockTable.counts. sharers: tables
    that share their first block.
    """

    tables: Sequence[BlockTable]
    size: int
    rows: I64
    lengths: I64
    computed: Sequence[int]
    unique: I64
    last: I64
    sharers: Sequence[Sequence[int]]

    @staticmethod
    def of(pool: BlockPool, computed: Sequence[tuple[BlockTable, int]]) -> _Tables:
        tables = [table for table, _ in computed]
        counts = _array(list(chain.from_iterable([t.counts() for t in tables])))
        return _Tables(
            tables,
            pool.block_size,
            _array([len(t.tails) for t in tables]),
            _array([t.length for t in tables]),
            [count for _, count in computed],
            counts[::2],
            counts[1::2],
            _sharers(tables),
        )

    def tokens(self, window: int | None) -> tuple[int, int]:
        """What the rows read each for itself, and with shared blocks once."""
        begins, unique = np.zeros_like(self.lengths), self.unique * self.size
        if window is not None:
            begins = np.maximum(self.lengths - self.computed - window + 1, 0) // self.size * self.size
            unique = self._unique_from(begins)
        alone = int(self.rows @ (self.lengths - begins))
        together = int(unique.sum()) - int(self.last @ (-self.lengths % self.size))
        return alone, together - sum([self._repeated(shared, begins) for shared in self.sharers])

    def _unique_from(self, begins: I64) -> I64:
        """Slots of the different blocks that each table's rows hold from `begins` on."""
        unique = self.unique * self.size - begins
        columns = begins // self.size - np.array([len(t.trunk) for t in self.tables], np.int64)
        for i in np.flatnonzero(columns > 0).tolist():
            tails = self.tables[i].tails[:, columns[i] :].ravel()
            one_each = self.tables[i].pool.occurrences.one_each(tails)
            unique[i] = np.count_nonzero(one_each) * self.size
        return unique

    def _repeated(self, shared: Sequence[int], begins: I64) -> int:
        """Tokens of blocks that several of these tables have in their trunks, counted but for the first
        time."""
        blocks = np.concatenate([self.tables[i].trunk[begins[i] // self.size :] for i in shared])
        one_each = self.tables[shared[0]].pool.occurrences.one_each(blocks)
        return (len(blocks) - int(np.count_nonzero(one_each))) * self.size


def _array(values: list[int]) -> I64:
    return np.fromiter(values, np.int64, len(values))


def _sharers(tables: Sequence[BlockTable]) -> list[list[int]]:
    """Tables share blocks from the first one on, or none."""
    heads = [table.head for table in tables]
    if len(set(heads)) == len(heads):
        return []
    found: dict[int, list[int]] = defaultdict(list)
    for place, head in enumerate(heads):
        if head is not None:
            found[head].append(place)
    return [places for places in found.values() if len(places) > 1]
