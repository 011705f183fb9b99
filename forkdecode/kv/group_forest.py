"""The nodes of a step: what groups share of their trunks, and rows of their tails, in one forest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from forkdecode.kv.forest_items import ItemShape
from forkdecode.kv.prefix_forest import SortedRows, internal_nodes, leaf_nodes
from forkdecode.step import I32, I64, Bools, DecodeRows


@dataclass(frozen=True, slots=True)
class StepRows:
    """All rows of a step, sharers beside each other.

    order [groups]: an order of groups. group, row [n]: of each row its group, and its row of that group's
    tails. begins [groups + 1]: where the groups of the order begin. shared [n + 1]: blocks that each row
    has in common with the one before it, -1 at both ends.
    """

    order: I64
    group: I64
    row: I64
    begins: I64
    shared: I64

    @staticmethod
    def of(groups: Sequence[DecodeRows], rows: Sequence[SortedRows], shape: ItemShape) -> StepRows:
        order, between = trunk_forest([g.trunk for g in groups], shape)
        ordered = order.tolist()
        counts = np.array([len(g.tails) for g in groups], np.int64)[order]
        trunks = np.array([len(g.trunk) for g in groups], np.int64)[order]
        begins = np.concatenate([[0], counts.cumsum()])
        shared = np.concatenate([piece for g in ordered for piece in (_GAP, rows[g].shared)] + [_GAP])
        shared[:-1] += trunks.repeat(counts)
        shared[begins] = between
        return StepRows(
            order,
            order.repeat(counts),
            np.concatenate([rows[g].order for g in ordered]),
            begins,
            shared,
        )


@dataclass(frozen=True, slots=True)
class GroupNodes:
    """All nodes of a step, those that begin earlier first. table [8, n]: first and number of entries
    in the query list; first entry in the flat block list; begin and end in tokens from the sequence's
    start (the context may end before); the last of the groups that read it; these groups, first and last
    (not included) in the order of `order`.
    """

    table: I64
    order: I64
    block_size: int

    @property
    def begin(self) -> I64:
        row: I64 = self.table[3]
        return row

    @property
    def end(self) -> I64:
        row: I64 = self.table[4]
        return row

    @property
    def group(self) -> I64:
        row: I64 = self.table[5]
        return row

    def seen_from(self, first_seen: I64) -> GroupNodes:
        """Without the blocks that no query of a node sees. first_seen [groups]: a position each."""
        earliest = _over(np.minimum, first_seen[self.order], self.table[6:])
        begin = np.maximum(self.begin, earliest // self.block_size * self.block_size)
        table = self.table.copy()
        table[2] += (begin - self.begin) // self.block_size
        table[3] = begin
        return replace(self, table=table.compress(begin < self.end, 1))


def trunk_forest(trunks: Sequence[I32], shape: ItemShape) -> tuple[I64, I64]:
    """An order of groups in which those that share trunk blocks are neighbours, and how many each of the
    order shares with the one before it, -1 at both ends. With fixed splits, down to a multiple of these."""
    n = len(trunks)
    shared = np.zeros(n + 1, np.int64)
    shared[[0, -1]] = -1
    heads = [int(t[0]) for t in trunks if len(t)]
    if len(set(heads)) == len(heads):
        return np.arange(n), shared
    order = sorted(range(n), key=lambda g: trunks[g].astype(">i4").tobytes())
    for i in range(1, n):
        a, b = trunks[order[i - 1]], trunks[order[i]]
        size = min(len(a), len(b))
        parted = np.flatnonzero(a[:size] != b[:size])
        shared[i] = parted[0] if len(parted) else size
    if shape.split_tokens is not None:
        blocks = shape.split_tokens // shape.block_size
        shared[1:-1] = shared[1:-1] // blocks * blocks
    return np.array(order), shared


def group_nodes(groups: Sequence[DecodeRows], rows: StepRows, queries: I64, shape: ItemShape) -> GroupNodes:
    """The nodes of all groups. queries [groups]: query tokens of each of their rows."""
    trunk = np.array([len(g.trunk) for g in groups], np.int64)
    columns = np.array([g.tails.shape[1] for g in groups], np.int64)
    sizes = np.array([g.tails.size for g in groups], np.int64) + trunk
    flat = np.cumsum(sizes) - sizes
    own = queries.take(rows.group)
    at = np.concatenate([[0], np.cumsum(own)])
    rank = np.arange(len(groups)).repeat(np.diff(rows.begins))

    def may_fold(boundary: I64, first: I64, last: I64) -> Bools:
        """Rows of a group, where all of it is not one node: what all read lies in one place alone, beside the
        trunk. And groups, but with fixed splits: a group's nodes must not depend on its batch."""
        own = rank.take(boundary)
        begin, end = rows.begins.take(own), rows.begins.take(own + 1)
        within: Bools = (first >= begin) & (last <= end) & (last - first < end - begin)
        return within if shape.split_tokens is not None else within | (boundary == begin)

    inner, shared = internal_nodes(rows.shared, own, shape.block_size, shape.group, may_fold)
    leaves = leaf_nodes(shared, (trunk + columns).take(rows.group))
    first, last, begin, end = np.concatenate([inner.table, leaves.table], 1)
    owner, behind = rows.group.take(first), trunk.take(rows.group.take(first))
    # A group's first row lies behind its trunk: there what all rows share goes on.
    place = begin + np.where(begin < behind, 0, rows.row.take(first) * columns.take(owner))
    readers = np.stack([rank.take(first), rank.take(last - 1) + 1])
    table = np.stack(
        [
            at.take(first),
            at.take(last) - at.take(first),
            flat.take(owner) + place,
            begin * shape.block_size,
            end * shape.block_size,
            _over(np.maximum, rows.order, readers),
            *readers,
        ]
    )
    return GroupNodes(table.take(np.argsort(begin, kind="stable"), 1), rows.order, shape.block_size)


def _over(best: np.ufunc, values: I64, spans: I64) -> I64:
    """The best of the values in each of spans [2, n], first and last (not included), none of them empty."""
    found: I64 = best.reduceat(np.append(values, values[-1]), spans.T.ravel())[::2]
    return found


_GAP = np.zeros(1, np.int64)
