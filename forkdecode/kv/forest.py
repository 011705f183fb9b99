"""What sharing saves, derived from the tables alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from forkdecode.kv.block_table import BlockTable
from forkdecode.step import I32


@dataclass(frozen=True, slots=True)
class Sharing:
    """Blocks of some groups at one moment.

    unshared: if every row held its own. unique: held, sharing between groups included.
    unused_slots: slots of the held blocks that no token has yet, all in last blocks.
    """

    unshared: int
    unique: int
    unused_slots: int

    @property
    def saved(self) -> float:
        """Blocks saved by sharing / blocks without sharing (PagedAttention paper, section 6.3)."""
        return 1 - self.unique / self.unshared if self.unshared else 0.0


def sharing(tables: Iterable[BlockTable]) -> Sharing:
    """How the rows of these tables share blocks now."""
    tables = list(tables)
    nothing = np.empty(0, np.int32)
    unique = np.unique(np.concatenate([nothing, *(table.references() for table in tables)]))
    # A block shared by tables of different lengths is filled as far as the longest has written.
    unused: dict[int, int] = {}
    for table in tables:
        for block in _open_blocks(table).tolist():
            unused[block] = min(_room(table), unused.get(block, _room(table)))
    return Sharing(sum(table.num_unshared for table in tables), len(unique), sum(unused.values()))


def unused_slots(table: BlockTable) -> int:
    """Sharing.unused_slots of one table."""
    return _room(table) * table.num_last


def _room(table: BlockTable) -> int:
    """How many slots of each row's last block are empty."""
    return -table.length % table.pool.block_size


def _open_blocks(table: BlockTable) -> I32:
    """The last blocks of the rows, each once, where they have room."""
    if not table.rows or not _room(table):
        return np.empty(0, np.int32)
    last = table.tails[:, -1]
    return last[table.pool.occurrences.one_each(last)]
