"""Host memory for the blocks of swapped-out groups. Numbers only: the runner moves the data."""

from __future__ import annotations

from forkdecode.kv.block_pool import OutOfBlocksError
from forkdecode.kv.free_list import FreeList
from forkdecode.step import I32


class HostPool:
    """num_slots host slots of one block each; a slot has one owner."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = FreeList(num_slots)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, n: int) -> I32:
        """n slots. Raises OutOfBlocksError, having changed nothing."""
        if n > len(self._free):
            raise OutOfBlocksError(n, len(self._free), "host slots")
        return self._free.pop(n)

    def free(self, slots: I32) -> None:
        """Give slots back."""
        self._free.push(slots)
