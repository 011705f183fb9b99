"""A stack of free ids."""

from __future__ import annotations

import numpy as np

from forkdecode.step import I32, I64


class FreeList:
    """The free ids among 0..size-1. Ids freed last are reused first, so that memory pages that
    were never touched stay untouched; a run taken from a fresh list is contiguous and ascending.
    """

    __slots__ = ("_count", "_stack")

    def __init__(self, size: int) -> None:
        self._stack = np.arange(size - 1, -1, -1, dtype=np.int32)
        self._count = size

    def __len__(self) -> int:
        return self._count

    def pop(self, n: int) -> I32:
        """Take n <= len(self) ids; ascending."""
        rest = self._count - n
        taken = self._stack[rest : self._count].copy()
        self._count = rest
        if n > 1:
            taken.sort()
        return taken

    def push(self, ids: I32 | I64) -> None:
        """Give ids back; distinct, and none of them free."""
        end = self._count + len(ids)
        self._stack[self._count : end] = ids[::-1]
        self._count = end

    def ids(self) -> I32:
        """All free ids, in no particular order."""
        return self._stack[: self._count].copy()
