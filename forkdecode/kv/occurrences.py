"""How often each id stands in a list, in linear time and without a sort."""

from __future__ import annotations

import numpy as np

from forkdecode.step import I32, Bools


class Occurrences:
    """Scratch space over ids 0..size-1; one pass to write it, one to read it back."""

    __slots__ = ("_scratch",)

    def __init__(self, size: int) -> None:
        self._scratch = np.zeros(size, np.int32)

    def first(self, ids: I32) -> Bools:
        """ids [n] -> [n]: whether no earlier entry holds the same id."""
        index = np.arange(len(ids), dtype=np.int32)
        # On a repeated index numpy keeps the last value assigned: backwards, that is the first entry.
        self._scratch[ids[::-1]] = index[::-1]
        return np.equal(self._scratch[ids], index)

    def count(self, ids: I32) -> I32:
        """ids [n] -> [n]: how many entries hold the same id."""
        self._scratch[ids] = 0
        np.add.at(self._scratch, ids, np.ones(len(ids), np.int32))
        return self._scratch[ids]
