"""Repeats in a list of ids, found in linear time and without a sort."""

from __future__ import annotations

import numpy as np

from forkdecode.step import I32, I64, Bools


class Occurrences:
    """Scratch space over ids 0..size-1: one pass writes it, one reads it back."""

    __slots__ = ("_scratch",)

    def __init__(self, size: int) -> None:
        self._scratch = np.zeros(size, np.int32)

    def one_each(self, ids: I32 | I64) -> Bools:
        """ids [n] -> [n]: picks one entry of each id, the last."""
        # On a repeated index numpy keeps the last value assigned.
        index = np.arange(len(ids), dtype=np.int32)
        self._scratch[ids] = index
        return np.equal(self._scratch.take(ids), index)

    def one_each_within(self, ids: I32 | I64, owners: I64) -> Bools | None:
        """ids, owners [n] -> [n]: picks one entry of each owner's each id, the last; None where owners have
        an id in common."""
        index = np.arange(len(ids), dtype=np.int32)
        self._scratch[ids] = index
        last = self._scratch.take(ids)
        if not np.array_equal(owners.take(last), owners):
            return None
        return np.equal(last, index)

    def count(self, ids: I32 | I64) -> I32:
        """ids [n] -> [n]: how many entries hold the same id."""
        self._scratch[ids] = 0
        np.add.at(self._scratch, ids, np.ones(len(ids), np.int32))
        return self._scratch.take(ids)
