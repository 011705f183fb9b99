"""What is counted of a block table's rows."""

from __future__ import annotations

import numpy as np

from forkdecode.kv.occurrences import Occurrences
from forkdecode.step import I32, I64


def different(tails: I32, occurrences: Occurrences) -> tuple[int, int]:
    """How many different blocks there are in tails [R, C], and how many of them rows end in."""
    rows, columns = tails.shape
    if rows <= 1 or not columns:
        return columns * rows, rows * (columns > 0)
    # A block is at the same place in all rows that have it, so one pass serves both.
    one_each = occurrences.one_each(tails.ravel())
    return int(np.count_nonzero(one_each)), int(np.count_nonzero(one_each[columns - 1 :: columns]))


def children_of(parents: I32, rows: int) -> I64:
    """[R]: how often each row is named. Raises ValueError on a parent out of range."""
    if len(parents) and (parents.min() < 0 or parents.max() >= rows):
        raise ValueError(f"parents: {parents.tolist()} has one out of range; allowed: 0 to {rows - 1}")
    return np.asarray(np.bincount(parents, minlength=rows), np.int64)
