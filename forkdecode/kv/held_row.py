"""A sequence at rest, held beyond the life of the group that computed it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from forkdecode.kv.block_pool import BlockPool
from forkdecode.step import I32


@dataclass(slots=True, eq=False)
class HeldRow:
    """One row with references of its own. blocks [ceil(length / S)]; length in tokens."""

    blocks: I32
    length: int
    _pool: BlockPool = field(repr=False)

    @staticmethod
    def of(pool: BlockPool, blocks: I32, length: int) -> HeldRow:
        """Takes one reference on each of `blocks`."""
        pool.retain(blocks)
        return HeldRow(blocks, length, pool)

    def references(self) -> I32:
        """One entry for each reference held."""
        return self.blocks

    def release(self) -> None:
        """Drop every reference; a second time does nothing."""
        self._pool.release(self.blocks[::-1])
        self.blocks, self.length = np.empty(0, np.int32), 0
