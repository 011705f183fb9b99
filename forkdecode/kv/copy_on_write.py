"""Which rows must copy their partial block before they write to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forkdecode.kv.block_pool import BlockPool
from forkdecode.step import I32, I64


@dataclass(frozen=True, slots=True)
class CopyOnWrite:
    """rows: those that write to a copy instead, ascending. sources: what each copies from.
    foreign: the sources that others than this table's rows hold too.
    """

    rows: I64
    sources: I32
    foreign: I32

    def __len__(self) -> int:
        return len(self.rows)


NO_COPIES = CopyOnWrite(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int32))


def copy_on_write(pool: BlockPool, partial: I32) -> CopyOnWrite:
    """partial [R]: the block each of a table's rows is about to write to.

    A block with c holders, m of them these rows, is copied m times, or m - 1 times when c = m:
    one row keeps it.
    """
    holders = pool.ref_count.take(partial)
    if holders.max(initial=1) == 1:
        return NO_COPIES
    index = partial.astype(np.int64)
    own = pool.occurrences.count(index)
    writes = holders > own
    foreign = partial[writes]
    writes |= ~pool.occurrences.one_each(index)
    rows = writes.nonzero()[0]
    return CopyOnWrite(rows, partial.take(rows), foreign)
