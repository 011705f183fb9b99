"""Block tables -> the node list that attention on a GPU runs from. Derived from the tables alone.

Rows are ordered so that sharers are neighbours: groups by their trunks, then rows inside a group by
their tails. Each run of blocks that the same queries read is a node. Since rows are neighbours, a
node's queries are a range of one list; since a group's table lies flat (trunk, then each row's tail),
a node's blocks are a range of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from forkdecode.kv.forest_items import Forest, ItemShape, within
from forkdecode.kv.forest_lists import Lister, NumpyLister, StepTables
from forkdecode.step import I32, I64, DecodeRows, QuerySegment

INVARIANT_SPLIT = 256
"""Tokens of an item where results must not depend on the batch: every plan splits at its multiples,
and groups share reads up to such a multiple only."""


@dataclass(frozen=True, slots=True)
class ForestPlan:
    """The arrays of forkdecode_kernels.node_list.NodeArrays, and what they read.

    node_tokens: of all nodes that decode rows read; row_tokens: what rows without sharing would read,
    each its context from the first block that it sees; segment_tokens: of the nodes that segments alone
    read. causal: the plan has several queries of one row.
    """

    small_items: I32
    large_items: I32
    blocks: I32
    queries: I32
    positions: I32
    merged: I32
    merge_offsets: I32
    merge_parts: I32
    num_parts: int
    causal: bool
    node_tokens: int
    row_tokens: int
    segment_tokens: int


@dataclass(frozen=True, slots=True)
class _Step:
    """What a plan was made from; the same objects again mean the same structure (tables never change
    in place), with contexts that may have grown inside their last blocks."""

    decodes: tuple[DecodeRows, ...]
    num_tokens: int

    def same_structure(self, segments: Sequence[QuerySegment], decodes: Sequence[DecodeRows], n: int) -> bool:
        return (
            not segments
            and n == self.num_tokens
            and len(decodes) == len(self.decodes)
            and all(
                a.trunk is b.trunk and a.tails is b.tails and a.token_start == b.token_start
                for a, b in zip(decodes, self.decodes, strict=True)
            )
        )


class ForestPlanner:
    """Plans steps for layers of one shape and window. Keeps what the last step's tables gave.

    shape: of the items. window: keys that a query sees, None for all. invariant: fixed splits, so
    that a group's results do not depend on its batch. lister: what makes the lists; None for numpy.
    """

    def __init__(
        self,
        shape: ItemShape,
        *,
        window: int | None = None,
        invariant: bool = False,
        lister: Lister | None = None,
    ) -> None:
        self._shape = replace(shape, split_tokens=INVARIANT_SPLIT) if invariant else shape
        self._window = window
        self._list = lister or NumpyLister()
        self._last: tuple[_Step, Forest, ForestPlan] | None = None

    def plan(
        self, segments: Sequence[QuerySegment], decodes: Sequence[DecodeRows], num_tokens: int
    ) -> ForestPlan:
        """The node list of a step. num_tokens: T, padding included; what no row covers gets zeros."""
        if self._last is not None and self._last[0].same_structure(segments, decodes, num_tokens):
            return self._grown(tuple(decodes))
        if not segments and not decodes:
            return _nothing(num_tokens)
        groups = [*(_as_rows(s, self._shape.block_size) for s in segments), *decodes]
        queries = [*(s.token_count for s in segments), *[1] * len(decodes)]
        tables = StepTables.of(groups, queries, num_tokens)
        forest = self._list(tables, self._shape, self._window)
        reads = self._reads(tables.sizes[3], tables.sizes[1], forest, len(segments))
        plan = _plan(forest, tables.blocks, max(queries) > 1, *reads)
        self._last = (_Step(tuple(decodes), num_tokens), forest, plan) if not segments else None
        return plan

    def _reads(self, contexts: I64, rows: I64, forest: Forest, first: int) -> tuple[int, int, int]:
        """Tokens that the groups from `first` on read, which decode, by nodes and by rows; and those of the
        nodes that others alone read."""
        lengths, seen = within(forest.nodes, contexts), contexts
        total = decoded = int(lengths.sum())
        if first:
            decoded = int(lengths.compress(forest.nodes[2] >= first).sum())
        if self._window is not None:
            size = self._shape.block_size
            seen = contexts - np.maximum(contexts - self._window, 0) // size * size
        return decoded, int(rows[first:] @ seen[first:]), total - decoded

    def _grown(self, decodes: tuple[DecodeRows, ...]) -> ForestPlan:
        """The last plan, with contexts that have grown inside blocks it already lists."""
        assert self._last is not None
        step, forest, plan = self._last
        if all(a.context_len == b.context_len for a, b in zip(decodes, step.decodes, strict=True)):
            return plan
        contexts = np.array([d.context_len for d in decodes], np.int64)
        rows = np.array([len(d.tails) for d in decodes], np.int64)
        positions = plan.positions.copy()
        for d in decodes:
            positions[d.token_start : d.token_start + len(d.tails)] = d.context_len - 1
        forest = forest.grown(contexts, positions)
        plan = _plan(forest, plan.blocks, False, *self._reads(contexts, rows, forest, 0))
        self._last = (_Step(decodes, step.num_tokens), forest, plan)
        return plan


def _plan(
    forest: Forest, blocks: I32, causal: bool, node_tokens: int, row_tokens: int, segment_tokens: int
) -> ForestPlan:
    return ForestPlan(
        forest.small_items,
        forest.large_items,
        blocks,
        forest.queries,
        forest.positions,
        forest.merged,
        forest.merge_offsets,
        forest.merge_parts,
        forest.num_parts,
        causal,
        node_tokens,
        row_tokens,
        segment_tokens,
    )


def _nothing(num_tokens: int) -> ForestPlan:
    """Padding alone: zeros for every token."""
    none, tokens = np.empty(0, np.int32), np.arange(num_tokens, dtype=np.int32)
    items = np.empty((0, 8), np.int32)
    offsets = np.zeros(num_tokens + 1, np.int32)
    return ForestPlan(
        items, items, none, none, np.zeros_like(tokens), tokens, offsets, none, 0, False, 0, 0, 0
    )


def _as_rows(segment: QuerySegment, block_size: int) -> DecodeRows:
    """A segment as a group of one row; what lies before its first query can be shared."""
    end = segment.position + segment.token_count
    used = segment.blocks[: -(-end // block_size)]
    full = segment.position // block_size
    return DecodeRows(segment.token_start, used[:full], used[None, full:], end)
