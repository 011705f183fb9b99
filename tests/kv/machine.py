"""A plain model of the KV layer: token lists, and a store that remembers what each slot holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from forkdecode.kv import BlockPool, BlockTable, Extension, HeldRow, PrefixCache, TableImage
from forkdecode.step import I32, BlockMoves


@dataclass(eq=False)
class Group:
    """A table and what its rows should hold. pending: it writes in the step being planned."""

    table: BlockTable
    rows: list[list[int]]
    salt: str
    pending: bool = False


@dataclass(eq=False)
class Held:
    row: HeldRow
    tokens: list[int]
    salt: str


@dataclass(eq=False)
class Preempted:
    image: TableImage
    rows: list[list[int]]
    salt: str
    swapped: np.ndarray | None
    """Contents of the unique blocks [U, S], or None for recompute."""


@dataclass(eq=False)
class Store:
    """The contents of all slots, and the copies and writes of the step being planned."""

    contents: np.ndarray
    block_size: int
    copies: list[BlockMoves] = field(default_factory=list)
    writes: list[tuple[np.ndarray, list[list[int]]]] = field(default_factory=list)

    def plan(self, extension: Extension, tokens: list[list[int]]) -> None:
        self.copies.append(extension.copies)
        self.writes.append((extension.slots, tokens))

    def execute(self) -> None:
        """All copies at once, then all writes: the order of a real step."""
        moves = BlockMoves.concat(self.copies)
        assert not set(moves.source.tolist()) & set(moves.target.tolist())
        assert len(set(moves.target.tolist())) == len(moves)
        self.contents[moves.target] = self.contents[moves.source]
        written = [slot for slots, _ in self.writes for slot in slots.ravel().tolist()]
        assert len(set(written)) == len(written), "two rows write to one slot"
        for slots, tokens in self.writes:
            self.contents.reshape(-1)[slots.ravel()] = [t for row in tokens for t in row]
        self.copies.clear()
        self.writes.clear()

    def read(self, blocks: I32, length: int) -> list[int]:
        return [int(token) for token in self.contents[blocks].ravel()[:length]]


def copies_by_rule_2(pool: BlockPool, table: BlockTable) -> int:
    """How many copies the next write takes, block by block."""
    if table.length % pool.block_size == 0:
        return 0
    writers = Counter(table.tails[:, -1].tolist())
    return sum(m - 1 if pool.ref_count[b] == m else m for b, m in writers.items())


def copies_one_by_one(pool: BlockPool, tables: Sequence[BlockTable]) -> int:
    """How many copies the next write of all of them takes: a holder that copies lets go."""
    left = Counter({int(b): int(pool.ref_count[b]) for t in tables for b in t.tails[:, -1:].ravel()})
    copies = 0
    for table in tables:
        if table.length % pool.block_size:
            for block, writers in Counter(table.tails[:, -1].tolist()).items():
                made = writers - 1 if left[block] == writers else writers
                left[block] -= made
                copies += made
    return copies


def check_table(table: BlockTable, size: int) -> None:
    """What must hold of every table, from its arrays alone."""
    blocks = [table.row_blocks(row).tolist() for row in range(table.rows)]
    assert table.num_unique == len({b for row in blocks for b in row})
    assert table.num_unshared == sum(map(len, blocks))
    assert all(len(row) == -(-table.length // size) for row in blocks)
    assert len(table.trunk) * size <= table.length
    if not table.rows:
        assert (table.length, len(table.trunk)) == (0, 0)


def check_promoted(table: BlockTable, size: int) -> None:
    """After an advance: no full block that all rows share is left at the front of the tails."""
    if len(table.trunk) < table.length // size:
        assert len(set(table.tails[:, 0].tolist())) > 1


def recompute(store: Store, table: BlockTable, image: TableImage, rows: list[list[int]], cached: int) -> None:
    """Fill restored blocks segment by segment; each needs its row's earlier tokens to be there."""
    size, written = store.block_size, set()
    for row, start, end in image.segments(cached):
        blocks = table.row_blocks(row)
        assert store.read(blocks, start) == rows[row][:start], "computed before what it depends on"
        for position in range(start, end):
            slot = (int(blocks[position // size]), position % size)
            assert slot not in written, "computed twice"
            written.add(slot)
            store.contents[slot] = rows[row][position]


def poison(store: Store, pool: BlockPool) -> None:
    """What nobody holds may hold anything."""
    store.contents[pool.ref_count == 0] = -1


def swap_in(store: Store, table: BlockTable, contents: np.ndarray) -> None:
    store.contents[table.image().unique_old] = contents


def holders(
    groups: list[Group], held: list[Held], cache: PrefixCache
) -> list[BlockTable | HeldRow | PrefixCache]:
    return [*(g.table for g in groups), *(h.row for h in held), cache]
