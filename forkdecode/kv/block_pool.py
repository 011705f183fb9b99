"""The block pool: who holds which KV block. The only writer of reference counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from forkdecode.errors import CapacityError, ForkdecodeError
from forkdecode.kv.free_list import FreeList
from forkdecode.kv.idle_queue import IdleQueue
from forkdecode.kv.occurrences import Occurrences
from forkdecode.step import I32, I64

_NO_BLOCKS: I32 = np.empty(0, np.int32)


class OutOfBlocksError(CapacityError):
    """A pool has fewer blocks than asked for, evictable ones included. Nothing was changed."""

    def __init__(self, needed: int, available: int, what: str = "KV blocks") -> None:
        super().__init__(f"{needed} {what} are needed and {available} are available")
        self.needed = needed
        self.available = available


class BlockAccountingError(ForkdecodeError):
    """A reference count does not agree with the holders: a broken invariant."""


class Holder(Protocol):
    """Anything that holds references."""

    def references(self) -> I32:
        """The block of each reference held, repeated where held more than once."""
        ...


class BlockPool:
    """B blocks of S slots. ref_count [B] counts the holders of each block: a tail entry of one row,
    one group's trunk, a held row, or the prefix cache. A block is free iff its count is 0.

    num_free: blocks that nobody holds. num_evictable: blocks that only the prefix cache holds;
    `allocate` takes them back when free ones run short, longest idle first.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.ref_count = np.zeros(num_blocks, np.int32)
        self.cached = np.zeros(num_blocks, np.bool_)
        """Of each block: whether one of its references is the prefix cache's."""
        self.occurrences = Occurrences(num_blocks)
        self._free = FreeList(num_blocks)
        self._idle = IdleQueue(num_blocks)
        self._forget: Callable[[I32], None] | None = None
        self._read_by_copies = np.zeros(num_blocks, np.bool_)
        self._protected = 0
        self._set_aside: list[I64] = []

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_evictable(self) -> int:
        return len(self._idle)

    @property
    def num_available(self) -> int:
        """What `allocate` can hand out now: num_free + num_evictable."""
        return len(self._free) + len(self._idle)

    def allocate(self, n: int) -> I32:
        """n blocks with a count of 1 each; ascending ids, a run where the pool is fresh.

        Raises OutOfBlocksError, having changed nothing, when n > num_available.
        """
        short = n - len(self._free)
        if short > 0:
            if short > len(self._idle):
                raise OutOfBlocksError(n, self.num_available)
            self.evict(short)
        blocks = self._free.pop(n)
        self.ref_count[blocks] = 1
        return blocks

    def retain(self, blocks: I32, times: I32 | None = None) -> None:
        """One more holder for each entry of `blocks` (any shape; repeats count each), or `times`.

        Raises BlockAccountingError when one of them is free.
        """
        index = blocks.astype(np.int64).ravel()
        if not len(index):
            return
        before = self.ref_count.take(index)
        if before.min() < 1:
            raise BlockAccountingError("a free block cannot be retained")
        np.add.at(self.ref_count, index, _times(index, times))
        if len(self._idle):
            busy = index[(before == 1) & self.cached[index]]
            if len(busy):
                self._idle.discard(busy[self.occurrences.one_each(busy)])

    def release(self, blocks: I32, times: I32 | None = None) -> None:
        """One holder less for each entry of `blocks` (any shape; repeats count each), or `times`.

        Of the blocks that the prefix cache keeps, those named first are evicted first: name a
        sequence's last blocks before its first. Raises BlockAccountingError on more releases than
        holders, having changed nothing.
        """
        index = blocks.astype(np.int64).ravel()
        if not len(index):
            return
        times = _times(index, times)
        np.subtract.at(self.ref_count, index, times)
        if not self._let_go(index):
            np.add.at(self.ref_count, index, times)
            raise BlockAccountingError("a block has fewer holders than releases")

    def recount(self, blocks: I32, change: I32) -> None:
        """`change` [n] more holders, or less, for each entry of `blocks` [n], of which the caller is one.

        What release says of the order holds for those that lose a holder. Raises BlockAccountingError on
        more releases than holders, having changed nothing.
        """
        index = blocks.astype(np.int64)
        np.add.at(self.ref_count, index, change)
        fewer = (change < 0).nonzero()[0]
        if len(fewer) and not self._let_go(index.take(fewer)):
            np.subtract.at(self.ref_count, index, change)
            raise BlockAccountingError("a block has fewer holders than releases")

    def _let_go(self, blocks: I64) -> bool:
        """These have lost holders. False, with nothing done, when one has fewer than none left."""
        left = self.ref_count.take(blocks)
        few = (left <= 1).nonzero()[0]
        if not len(few):
            return True
        low, left = blocks.take(few), left.take(few)
        if left.min() < 0:
            return False
        if self._protected:
            aside = self._read_by_copies[low]
            self._set_aside.append(low[aside])
            low, left = low[~aside], left[~aside]
        self._settle(low, left)
        return True

    def _settle(self, blocks: I64, counts: I32) -> None:
        """Of these blocks, free those that nobody holds; those that only the cache holds are idle.

        Of repeats the last counts: a prefix shared by several released rows goes after all of them.
        """
        freed = blocks.take((counts == 0).nonzero()[0])
        if len(freed):
            self._free.push(freed[self.occurrences.one_each(freed)])
        if len(freed) < len(blocks) and self._forget is not None:
            idle = blocks.take((self.cached.take(blocks) & (counts == 1)).nonzero()[0])
            if len(idle):
                self._idle.append(idle[self.occurrences.one_each(idle)])

    def protect(self, blocks: I32) -> None:
        """These are sources of this step's copies: should they lose their last holder, they are not
        allocated again before `begin_step`. All copies of a step run at once, so that a source
        must not also be a target.
        """
        self._read_by_copies[blocks] = True
        self._protected += len(blocks)

    def begin_step(self) -> None:
        """The last step's copies have run: what they read may be reused."""
        if self._protected:
            self._read_by_copies[:] = False
            self._protected = 0
            blocks = np.concatenate([np.empty(0, np.int64), *self._set_aside])
            self._set_aside.clear()
            self._settle(blocks, self.ref_count[blocks])

    # -- the prefix cache's side ------------------------------------------------------------------

    def attach(self, forget: Callable[[I32], None]) -> None:
        """Register the prefix cache: `forget(blocks)` is told of blocks about to be evicted."""
        self._forget = forget

    def adopt(self, blocks: I32) -> None:
        """The prefix cache takes a reference on distinct, held, uncached blocks."""
        self.retain(blocks)
        self.cached[blocks] = True

    def touch(self, blocks: I32) -> None:
        """Of these distinct cached blocks, move the idle ones to the end of the eviction order."""
        self._idle.append(blocks[self._idle.contains(blocks)])

    def evict(self, n: int) -> None:
        """Free the n blocks that were idle longest; n <= num_evictable."""
        blocks = self._idle.pop(n)
        if self._forget is not None:
            self._forget(blocks)
        self.cached[blocks] = False
        self.ref_count[blocks] = 0
        self._free.push(blocks)

    def check(self, holders: Iterable[Holder]) -> None:
        """Verify every count against the holders' own lists, and the free set against the counts.

        `holders` must be all there are: block tables, held rows, the prefix cache. Raises
        BlockAccountingError naming the first blocks that disagree. O(B); for tests and debugging.
        """
        held = [holder.references() for holder in holders]
        counts = np.bincount(np.concatenate([_NO_BLOCKS, *held]), minlength=self.num_blocks)
        _same("ref_count", self.ref_count, counts)
        aside = np.zeros(self.num_blocks, np.bool_)
        aside[np.concatenate([np.empty(0, np.int64), *self._set_aside])] = True
        free = np.bincount(self._free.ids(), minlength=self.num_blocks)
        _same("free", free, (counts == 0) & ~aside)
        idle = np.bincount(self._idle.ids(), minlength=self.num_blocks)
        _same("idle", idle, self.cached & (counts == 1) & ~aside)
        if int(idle.sum()) != len(self._idle):
            raise BlockAccountingError(f"num_evictable is {len(self._idle)}, should be {idle.sum()}")


def _times(blocks: I64, times: I32 | None) -> I32:
    # ufunc.at is 20 times faster with an array than with a scalar.
    return np.ones(len(blocks), np.int32) if times is None else times


def _same(what: str, found: np.ndarray, expected: np.ndarray) -> None:
    wrong = np.flatnonzero(found != expected)[:8]
    if len(wrong):
        raise BlockAccountingError(
            f"{what} of blocks {wrong.tolist()} is {found[wrong].tolist()}, "
            f"should be {expected[wrong].astype(int).tolist()}"
        )
