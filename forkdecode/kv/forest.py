"""What sharing saves, derived from the tables alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from forkdecode.kv.block_table import BlockTable


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
        empty = -table.length % table.pool.block_size
        if empty:
            for block in np.unique(table.tails[:, -1]).tolist():
                unused[block] = min(empty, unused.get(block, empty))
    return Sharing(sum(table.num_unshared for table in tables), len(unique), sum(unused.values()))
