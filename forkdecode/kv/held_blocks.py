"""The blocks of rows at rest, wherever they are: in the pool, in host memory, or nowhere any more."""

from __future__ import annotations

import numpy as np

from forkdecode.kv.block_pool import BlockPool
from forkdecode.kv.swap import HostPool
from forkdecode.step import I32, BlockMoves, Bools

NOWHERE = -1
_FIRST_CAPACITY = 256


class HeldBlocks:
    """A row at rest is a list of handles, one a block. A handle names what a block holds and stays when
    that moves: rows that share a block share its handle, so that it is swapped once for all of them, and
    what one of them brings back is there for the others.

    block, slot [capacity]: where each handle's KV is; NOWHERE twice when it is lost. rows [capacity]: how
    many rows list it; live [capacity]: how many of these want it to stay in the pool. The handles hold
    one reference on each of their blocks.
    """

    def __init__(self, pool: BlockPool, host: HostPool) -> None:
        self._pool = pool
        self._host = host
        self.block: I32 = np.full(_FIRST_CAPACITY, NOWHERE, np.int32)
        self.slot: I32 = np.full(_FIRST_CAPACITY, NOWHERE, np.int32)
        self.rows: I32 = np.zeros(_FIRST_CAPACITY, np.int32)
        self.live: I32 = np.zeros(_FIRST_CAPACITY, np.int32)
        self._unused = list(range(_FIRST_CAPACITY - 1, -1, -1))
        self._handle: I32 = np.full(pool.num_blocks, NOWHERE, np.int32)
        """Of each block in the pool."""
        self._leaving: list[I32] = []

    def references(self) -> I32:
        """One entry for each reference held."""
        return self.block[self.block >= 0]

    # -- rows -------------------------------------------------------------------------------------

    def hold(self, blocks: I32) -> I32:
        """Handles of the distinct `blocks`, which somebody still holds, for one more live row."""
        handles = self._handle[blocks]
        new = np.flatnonzero(handles < 0)
        handles[new] = self._fresh(len(new))
        self.join(handles)
        self.bind(handles[new], blocks[new])
        return handles

    def join(self, handles: I32) -> None:
        """One more live row lists these."""
        self.rows[handles] += 1
        self.live[handles] += 1

    def leave(self, handles: I32, live: bool) -> None:
        """A row less lists these; what none lists is given back, the last blocks first."""
        self.rows[handles] -= 1
        self.live[handles] -= live
        unused = handles[self.rows[handles] == 0]
        self.lose(unused)
        self._unused += unused.tolist()

    def settle(self, handles: I32) -> None:
        """A live row lets its blocks go when they are needed."""
        self.live[handles] -= 1

    def revive(self, handles: I32) -> None:
        """A row that was settled wants its blocks again."""
        self.live[handles] += 1

    def bind(self, handles: I32, blocks: I32) -> None:
        """These blocks hold from now on what handles that are not in the pool name."""
        self._free_slots(handles)
        self._pool.retain(blocks)
        self.block[handles] = blocks
        self._handle[blocks] = handles

    def handle_of(self, block: int) -> int:
        """NOWHERE for a block of no handle."""
        return int(self._handle[block])

    def _fresh(self, n: int) -> I32:
        if n > len(self._unused):
            size = len(self.block)
            more = max(size, n)
            nowhere, none = np.full(more, NOWHERE, np.int32), np.zeros(more, np.int32)
            self.block = np.concatenate([self.block, nowhere])
            self.slot = np.concatenate([self.slot, nowhere])
            self.rows, self.live = np.concatenate([self.rows, none]), np.concatenate([self.live, none])
            self._unused[:0] = range(size + more - 1, size - 1, -1)
        return np.array([self._unused.pop() for _ in range(n)], np.int32)

    # -- pressure ---------------------------------------------------------------------------------

    def alone(self, handles: I32) -> Bools:
        """[n]: whether nobody but its handle, and the prefix cache, holds the block of each."""
        blocks = self.block[handles]
        others = self._pool.ref_count[blocks] - self._pool.cached[blocks]
        return np.asarray((blocks >= 0) & (others == 1))

    def in_pool(self) -> I32:
        """All handles that have a block."""
        return np.flatnonzero(self.block >= 0).astype(np.int32)

    def idle(self, handles: I32) -> I32:
        """Those of `handles` whose blocks return to the pool when they go, and which no row wants there."""
        return np.asarray(handles[(self.live[handles] == 0) & self.alone(handles)])

    def to_host(self, handles: I32) -> BlockMoves:
        """What moves these, which have blocks, to as many slots. It has to run in the next step."""
        slots = self._host.allocate(len(handles))
        self._host.moving(slots)
        moves = BlockMoves(self.block[handles], slots)
        self._leaving.append(handles)
        self._free_blocks(handles)
        self.slot[handles] = slots
        return moves

    def lose(self, handles: I32) -> None:
        """What these name is nowhere any more."""
        self._free_blocks(handles)
        self._free_slots(handles)

    def idle_in_host(self, handles: I32) -> I32:
        """Those of `handles` that have a slot which can be given to others now."""
        here = handles[(self.slot[handles] >= 0) & (self.live[handles] == 0)]
        return np.asarray(here[~self._host.is_moving(self.slot[here])])

    def in_host(self) -> I32:
        """All handles that have a slot."""
        return np.flatnonzero(self.slot >= 0).astype(np.int32)

    def moved(self) -> None:
        """The step that moves handles to the host has run."""
        self._leaving.clear()

    def failed(self) -> None:
        """That step has failed: nobody knows how far it came."""
        leaving = np.unique(np.concatenate([np.empty(0, np.int32), *self._leaving]))
        self._leaving.clear()
        self.lose(leaving)

    def _free_blocks(self, handles: I32) -> None:
        blocks = self.block[handles]
        blocks = blocks[blocks >= 0]
        self._handle[blocks] = NOWHERE
        self.block[handles] = NOWHERE
        self._pool.release(blocks[::-1])

    def _free_slots(self, handles: I32) -> None:
        slots = self.slot[handles]
        self.slot[handles] = NOWHERE
        self._host.free(slots[slots >= 0])
