"""What is followed of a journal for its picture, and its blocks step by step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forkdecode.calls.picture import Blocks
from forkdecode.engine.picture_nodes import Sketch
from forkdecode.engine.replay_run import RunReplay
from forkdecode.kv.block_table import BlockTable
from forkdecode.scheduler.group import SequenceGroup
from forkdecode.step import I32


@dataclass(slots=True)
class Followed:
    """A request that is followed. rows: where each live row is. seen: steps of its history. samples:
    where each candidate is that has a number from the start. made: its nodes, as far as rows made them."""

    group: SequenceGroup
    root: Sketch
    rows: list[Sketch]
    seen: int = 0
    samples: dict[int, Sketch] = field(default_factory=dict)
    made: list[Sketch] = field(default_factory=list)


@dataclass(slots=True)
class SeenTree:
    """A session's nodes by number, the path that each stands for, and whose KV was shared with whom."""

    nodes: dict[int, Sketch] = field(default_factory=dict)
    paths: dict[int, tuple[int, ...]] = field(default_factory=dict)
    sources: dict[int, int] = field(default_factory=dict)


class Film:
    """Which blocks hold which node's tokens, and how many rows and nodes use each, step by step."""

    def __init__(self) -> None:
        self._size = 0
        self._counts: dict[int, int] = {}
        self._refs: list[tuple[int, int, int]] = []
        self._tables: dict[int, tuple[Sketch, tuple[int, ...]]] = {}
        self._changes: list[tuple[int, Sketch, tuple[int, ...]]] = []

    def expose(
        self, step: int, run: RunReplay, groups: Iterable[Followed], trees: dict[str, SeenTree]
    ) -> None:
        """Takes what changed in this step."""
        scheduler = run.scheduler
        self._size = scheduler.pool.block_size
        uses = np.zeros(scheduler.pool.num_blocks, np.int64)
        found: dict[int, tuple[Sketch, tuple[int, ...]]] = {}
        for one in groups:
            table: BlockTable | None = one.group.table
            if table is None:
                continue
            uses[table.trunk] += table.rows
            np.add.at(uses, table.tails.ravel(), 1)
            for row, node in enumerate(one.rows if len(one.rows) == table.rows else ()):
                self._place(node, table.row_blocks(row), found)
        for ref, blocks in scheduler.held.rows():
            kept = trees[ref.tree].nodes.get(ref.node) if ref.tree in trees else None
            if kept is not None:
                uses[blocks[blocks >= 0]] += 1
                self._place(kept, blocks, found)
        self._changed(step, uses, found)

    def _place(self, leaf: Sketch, blocks: I32, found: dict[int, tuple[Sketch, tuple[int, ...]]]) -> None:
        for node in leaf.upwards():
            if id(node) in found:
                return
            own = blocks[node.start // self._size : -(-node.end // self._size)]
            found[id(node)] = node, tuple(own[own >= 0].tolist())

    def _changed(self, step: int, uses: Any, found: dict[int, tuple[Sketch, tuple[int, ...]]]) -> None:
        counts = {int(block): int(uses[block]) for block in np.flatnonzero(uses)}
        for block in sorted({*counts, *self._counts}):
            if counts.get(block, 0) != self._counts.get(block, 0):
                self._refs.append((step, block, counts.get(block, 0)))
        for key, (node, blocks) in found.items():
            if key not in self._tables or self._tables[key][1] != blocks:
                self._changes.append((step, node, blocks))
        for key, (node, blocks) in self._tables.items():
            if key not in found and blocks:
                self._changes.append((step, node, ()))
        self._counts, self._tables = counts, found

    def blocks(self, order: Sequence[Sketch]) -> Blocks | None:
        places = {id(node): place for place, node in enumerate(order)}
        changes = tuple((step, places[id(node)], blocks) for step, node, blocks in self._changes)
        return Blocks(self._size, tuple(self._refs), changes) if self._size else None
