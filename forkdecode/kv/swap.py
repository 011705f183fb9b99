"""Host memory for the blocks of swapped-out groups and rows. Numbers only: the runner moves the data."""

from __future__ import annotations

import numpy as np

from forkdecode.kv.block_pool import OutOfBlocksError
from forkdecode.kv.free_list import FreeList
from forkdecode.step import I32, Bools


class HostPool:
    """num_slots host slots of one block each; a slot has one owner."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = FreeList(num_slots)
        self._moving = np.zeros(num_slots, np.bool_)
        self._any_moving = False
        self._later: list[I32] = []

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, n: int) -> I32:
        """n slots. Raises OutOfBlocksError, having changed nothing."""
        if n > len(self._free):
            raise OutOfBlocksError(n, len(self._free), "host slots")
        return self._free.pop(n)

    def moving(self, slots: I32) -> None:
        """The next step moves data into or out of these: until it has run they are nobody else's, even if
        they are freed before."""
        self._moving[slots] = True
        self._any_moving = True

    def staying(self, slots: I32) -> None:
        """It does not move them after all."""
        self._moving[slots] = False

    def is_moving(self, slots: I32) -> Bools:
        """[n]: whether the next step moves each."""
        return self._moving[slots]

    def moved(self) -> None:
        """That step has run."""
        if self._any_moving:
            self._moving[:] = False
            self._any_moving = False
        for slots in self._later:
            self._free.push(slots)
        self._later.clear()

    def free(self, slots: I32) -> None:
        """Give slots back."""
        if self._any_moving:
            moving = self._moving[slots]
            self._later.append(slots[moving])
            slots = slots[~moving]
        self._free.push(slots)
