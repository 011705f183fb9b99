"""The structure of a block table without its blocks: what preemption keeps of a group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forkdecode.step import I32


@dataclass(frozen=True, slots=True)
class TableImage:
    """Unique blocks are numbered 0..U-1: the trunk in order, then the tails column by column, in
    each by the first row that holds it.

    unique_old [U]: the ids they had. num_trunk: the trunk is 0..num_trunk-1. tails [R, C]: the
    number of each tail entry. length: tokens with a slot, in every row. The image holds no
    reference.
    """

    unique_old: I32
    num_trunk: int
    tails: I32
    length: int
    block_size: int

    @staticmethod
    def of(trunk: I32, tails: I32, length: int, block_size: int) -> TableImage:
        # Columns never share a block: an id stands at one place of a sequence.
        entries = np.concatenate([trunk, tails.T.ravel()])
        _, first, inverse = np.unique(entries, return_index=True, return_inverse=True)
        order = np.argsort(first)
        number = np.empty(len(order), np.int32)
        number[order] = np.arange(len(order))
        numbered = number[inverse[len(trunk) :]].reshape(tails.T.shape).T.copy()
        return TableImage(entries[first[order]], len(trunk), numbered, length, block_size)

    @property
    def num_unique(self) -> int:
        return len(self.unique_old)

    @property
    def rows(self) -> int:
        return len(self.tails)

    def segments(self, from_block: int = 0) -> list[tuple[int, int, int]]:
        """(row, start_token, end_token) in ascending rows: who computes which tokens, so that each
        unique block from the trunk's `from_block` on is computed once. A segment needs the tokens
        of its row before start_token: computed by the segments before it, or given.

        Rows share prefixes only, so a row is the first to hold a suffix of its columns.
        """
        if not self.rows:
            return []
        begins = self._first_owned()
        begins[0] = min(from_block, self.num_trunk)
        starts = begins * self.block_size
        return [
            (int(row), int(starts[row]), self.length) for row in np.flatnonzero(starts < self.length).tolist()
        ]

    def _first_owned(self) -> I32:
        """[R]: the first column of the whole table that no earlier row holds."""
        if not self.tails.size:
            return np.full(self.rows, self.num_trunk, np.int32)
        _, first = np.unique(self.tails.T.ravel(), return_index=True)
        owned = np.zeros(self.tails.size, np.int32)
        owned[first] = 1
        shared = self.tails.shape[1] - owned.reshape(self.tails.shape[::-1]).sum(axis=0)
        return np.asarray(self.num_trunk + shared, np.int32)
