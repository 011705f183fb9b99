"""Which rows must copy their partial block before they write to it."""

from __future__ import annotations

import numpy as np

from forkdecode.kv.block_pool import BlockPool
from forkdecode.step import I32, I64


def copying_rows(pool: BlockPool, partial: I32) -> I64:
    """partial [R]: the block each of a table's rows is about to write to. Returns the rows that
    must write to a copy instead, ascending.

    A block with c holders, m of them these rows, is copied m times, or m - 1 times when c = m:
    its first row keeps it.
    """
    holders = pool.ref_count[partial]
    if holders.max() == 1:
        return np.empty(0, np.int64)
    keeps = (holders == pool.occurrences.count(partial)) & pool.occurrences.first(partial)
    return np.flatnonzero(~keeps)


def protect_sources(pool: BlockPool, partial: I32, rows: I64) -> None:
    """Protect what `rows` copy from and others hold too: they may let go of it within this step."""
    sources = partial[rows]
    foreign = sources[pool.ref_count[sources] > pool.occurrences.count(partial)[rows]]
    if len(foreign):
        pool.protect(foreign)
