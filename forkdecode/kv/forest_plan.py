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

from forkdecode.kv.forest_items import Items, ItemShape, ListedItems, cut_items, list_items
from forkdecode.kv.group_forest import GroupNodes, StepRows, group_nodes
from forkdecode.kv.prefix_forest import SortedRows, sorted_rows
from forkdecode.step import I32, I64, DecodeRows, QuerySegment

INVARIANT_SPLIT = 256
"""Tokens of an item where results must not depend on the batch: every plan splits at its multiples,
and groups share reads up to such a multiple only."""


@dataclass(frozen=True, slots=True)
class ForestPlan:
    """The arrays of forkdecode_kernels.node_list.NodeArrays, and what they read.

    node_tokens: of all nodes that decode rows read; row_tokens: what rows without sharing would read,
    each its context from the first block that it sees. causal: the plan has several queries of one row.
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
    that a group's results do not depend on its batch.
    """

    def __init__(self, shape: ItemShape, *, window: int | None = None, invariant: bool = False) -> None:
        self._shape = replace(shape, split_tokens=INVARIANT_SPLIT) if invariant else shape
        self._window = window
        self._sorted: dict[int, tuple[I32, SortedRows]] = {}
        self._last: tuple[_Step, GroupNodes, Items, ListedItems, ForestPlan] | None = None

    def plan(
        self, segments: Sequence[QuerySegment], decodes: Sequence[DecodeRows], num_tokens: int
    ) -> ForestPlan:
        """The node list of a step. num_tokens: T, padding included; what no row covers gets zeros."""
        if self._last is not None and self._last[0].same_structure(segments, decodes, num_tokens):
            return self._grown(tuple(decodes))
        if not segments and not decodes:
            return _nothing(num_tokens)
        groups = [*(_as_rows(s, self._shape.block_size) for s in segments), *decodes]
        counts = np.array([s.token_count for s in segments] + [1] * len(decodes), np.int64)
        rows = np.array([len(g.tails) for g in groups], np.int64)
        starts = np.array([g.token_start for g in groups], np.int64)
        contexts = np.array([g.context_len for g in groups], np.int64)
        ordered = StepRows.of(groups, self._sorted_rows(groups), self._shape)
        nodes = group_nodes(groups, ordered, counts, self._shape)
        if self._window is not None:
            nodes = nodes.seen_from(contexts - counts - self._window + 1)
        queries, positions = _queries(starts, counts, contexts, ordered, num_tokens)
        items = cut_items(nodes, contexts, self._shape)
        listed = list_items(items, queries, num_tokens, self._shape)
        blocks = [a.ravel() for g in groups for a in (g.trunk, g.tails)]
        is_decode = np.arange(len(groups)) >= len(segments)
        tokens = items.node_tokens(contexts)
        plan = ForestPlan(
            *listed.split(items.lengths(contexts)),
            np.concatenate(blocks),
            queries,
            positions,
            listed.merged,
            listed.merge_offsets,
            listed.merge_parts,
            listed.num_parts,
            bool((counts > 1).any()),
            int(tokens[is_decode[items.node_group]].sum()),
            int((rows * self._read(contexts))[is_decode].sum()),
        )
        self._last = (_Step(tuple(decodes), num_tokens), nodes, items, listed, plan) if not segments else None
        return plan

    def _read(self, contexts: I64) -> I64:
        """Tokens that a decode row with each of these contexts reads."""
        if self._window is None:
            return contexts
        size = self._shape.block_size
        read: I64 = contexts - np.maximum(contexts - self._window, 0) // size * size
        return read

    def _sorted_rows(self, groups: Sequence[DecodeRows]) -> list[SortedRows]:
        """Of each group's tails; those of unchanged tables are kept."""
        before, kept = self._sorted, {}
        fresh = []
        for g in groups:
            known = before.get(id(g.tails))
            if known is not None and known[0] is g.tails:
                kept[id(g.tails)] = known
            else:
                fresh.append(g.tails)
        for tails, rows in zip(fresh, sorted_rows(fresh), strict=True):
            kept[id(tails)] = (tails, rows)
        self._sorted = kept
        return [kept[id(g.tails)][1] for g in groups]

    def _grown(self, decodes: tuple[DecodeRows, ...]) -> ForestPlan:
        """The last plan, with contexts that have grown inside blocks it already lists."""
        assert self._last is not None
        step, nodes, items, listed, plan = self._last
        contexts = np.array([d.context_len for d in decodes], np.int64)
        if all(a.context_len == b.context_len for a, b in zip(decodes, step.decodes, strict=True)):
            return plan
        rows = np.array([len(d.tails) for d in decodes], np.int64)
        positions = plan.positions.copy()
        for d in decodes:
            positions[d.token_start : d.token_start + len(d.tails)] = d.context_len - 1
        small, large = listed.split(items.lengths(contexts))
        plan = replace(
            plan,
            small_items=small,
            large_items=large,
            positions=positions,
            node_tokens=int(items.node_tokens(contexts).sum()),
            row_tokens=int((rows * self._read(contexts)).sum()),
        )
        self._last = (_Step(decodes, step.num_tokens), nodes, items, listed, plan)
        return plan


def _nothing(num_tokens: int) -> ForestPlan:
    """Padding alone: zeros for every token."""
    none, tokens = np.empty(0, np.int32), np.arange(num_tokens, dtype=np.int32)
    items = np.empty((0, 8), np.int32)
    offsets = np.zeros(num_tokens + 1, np.int32)
    return ForestPlan(items, items, none, none, np.zeros_like(tokens), tokens, offsets, none, 0, False, 0, 0)


def _as_rows(segment: QuerySegment, block_size: int) -> DecodeRows:
    """A segment as a group of one row; what lies before its first query can be shared."""
    end = segment.position + segment.token_count
    used = segment.blocks[: -(-end // block_size)]
    full = segment.position // block_size
    return DecodeRows(segment.token_start, used[:full], used[None, full:], end)


def _queries(starts: I64, counts: I64, contexts: I64, rows: StepRows, num_tokens: int) -> tuple[I32, I32]:
    """Query tokens in the forest's order, and the position of every token."""
    positions = np.zeros(num_tokens, np.int32)
    queries, group = starts.take(rows.group) + rows.row, rows.group
    first = (contexts - counts).take(group)
    if (counts > 1).any():
        each = counts.take(group)
        ends = each.cumsum()
        offset = np.arange(int(ends[-1])) - (ends - each).repeat(each)
        queries, first = queries.repeat(each) + offset, first.repeat(each) + offset
    positions[queries] = first
    return queries.astype(np.int32), positions
