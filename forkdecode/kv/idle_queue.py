"""Blocks that only the prefix cache holds, in the order in which they are to be evicted."""

from __future__ import annotations

import numpy as np

from forkdecode.step import I32, I64, Bools

_FIRST_CAPACITY = 256


class IdleQueue:
    """First idle, first evicted. A block that leaves the queue from its middle is not searched for:
    its stamp changes, and its old entry is skipped when the head reaches it.
    """

    def __init__(self, num_blocks: int) -> None:
        self._stamp = np.zeros(num_blocks, np.int64)
        """Of each block: the stamp of its valid entry, 0 for none."""
        self._blocks: I32 = np.empty(_FIRST_CAPACITY, np.int32)
        self._stamps: I64 = np.empty(_FIRST_CAPACITY, np.int64)
        self._head = self._end = 0
        self._clock = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, blocks: I32 | I64) -> None:
        """Put distinct blocks at the end, in this order; those in the queue move there."""
        self._count += len(blocks) - int(np.count_nonzero(self._stamp[blocks]))
        if self._end + len(blocks) > len(self._blocks):
            self._make_room(len(blocks))
        stamps = np.arange(self._clock + 1, self._clock + 1 + len(blocks))
        self._stamp[blocks] = stamps
        end = self._end + len(blocks)
        self._blocks[self._end : end] = blocks
        self._stamps[self._end : end] = stamps
        self._clock += len(blocks)
        self._end = end

    def discard(self, blocks: I32 | I64) -> None:
        """Take distinct blocks out, those that are in."""
        self._count -= int(np.count_nonzero(self._stamp[blocks]))
        self._stamp[blocks] = 0

    def contains(self, blocks: I32) -> Bools:
        """blocks [n] -> [n]: whether each is in the queue."""
        return np.greater(self._stamp[blocks], 0)

    def pop(self, n: int) -> I32:
        """Take the n <= len(self) blocks at the head."""
        taken = []
        while n:
            window = slice(self._head, min(self._head + max(n, 64), self._end))
            valid = np.flatnonzero(self._stamp[self._blocks[window]] == self._stamps[window])[:n]
            blocks = self._blocks[window][valid]
            # Entries behind the last one taken may still be valid; stop right after it when done.
            self._head = self._head + int(valid[-1]) + 1 if len(valid) == n else window.stop
            self.discard(blocks)
            taken.append(blocks)
            n -= len(blocks)
        return np.concatenate(taken) if taken else np.empty(0, np.int32)

    def ids(self) -> I32:
        """All blocks in the queue, the next to be evicted first."""
        return self._live()[0]

    def _make_room(self, extra: int) -> None:
        """Drop stale entries; grow only when live ones fill more than half."""
        blocks, stamps = self._live()
        capacity = max(len(self._blocks), 2 * (len(blocks) + extra))
        self._blocks, self._stamps = np.empty(capacity, np.int32), np.empty(capacity, np.int64)
        self._head, self._end = 0, len(blocks)
        self._blocks[: self._end], self._stamps[: self._end] = blocks, stamps

    def _live(self) -> tuple[I32, I64]:
        """The valid entries and their stamps, in order."""
        blocks, stamps = self._blocks[self._head : self._end], self._stamps[self._head : self._end]
        valid = self._stamp[blocks] == stamps
        return blocks[valid], stamps[valid]
