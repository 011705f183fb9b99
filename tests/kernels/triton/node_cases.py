"""Forests of rows for the attention tests, and an obvious planner for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.node_list import check_nodes

I32 = NDArray[np.int32]


@dataclass(frozen=True)
class Row:
    """One sequence: its blocks, its length, and the query tokens that stand at its last positions."""

    blocks: tuple[int, ...]
    length: int
    queries: tuple[int, ...]

    def position(self, query: int) -> int:
        return self.length - len(self.queries) + self.queries.index(query)


@dataclass(frozen=True)
class Arrays:
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


def grow_forest(
    rng: np.random.Generator,
    block_size: int,
    *,
    trunk: int,
    branches: Sequence[int],
    tail: int,
    queries: int = 1,
) -> list[Row]:
    """Rows that share `trunk` blocks and then fork: level i into branches[i], one block a level; each
    has up to `tail` tokens of its own. Block ids come in random order."""
    rows: list[list[int]] = [list(range(trunk))]
    following = trunk
    for factor in branches:
        grown = []
        for row in rows:
            for _ in range(factor):
                grown.append([*row, following])
                following += 1
        rows = grown
    lengths = []
    for row in rows:
        own = int(rng.integers(max(1, queries), max(1, queries) + tail))
        lengths.append(len(row) * block_size + own)
        for _ in range(-(-own // block_size)):
            row.append(following)
            following += 1
    names = rng.permutation(following + 3).tolist()
    tokens = rng.permutation(len(rows) * queries).reshape(len(rows), queries).tolist()
    return [
        Row(tuple(names[b] for b in row), length, tuple(own))
        for row, length, own in zip(rows, lengths, tokens, strict=True)
    ]


def plan_rows(
    rows: Sequence[Row], block_size: int, num_tokens: int, tiles: tuple[int, int], split: int = 1 << 20
) -> Arrays:
    """The node list of rows, by a dictionary of common prefixes. split: tokens an item has at most.

    Query tokens of no row are listed as merged from nothing, so that their output is zero.
    """
    nodes = _nodes(rows, block_size)
    blocks: list[int] = []
    queries: list[int] = []
    raw: list[tuple[int, int, int, int, int, list[int]]] = []
    for members, prefix, begin, tokens in nodes:
        base = len(blocks)
        blocks += prefix[begin:]
        own = [q for r in members for q in rows[r].queries]
        size = tiles[1] if len(own) > tiles[0] else tiles[0]
        for i in range(0, len(own), size):
            some = own[i : i + size]
            for start in range(0, tokens, split):
                raw.append(
                    (
                        len(queries),
                        len(some),
                        base + start // block_size,
                        min(split, tokens - start),
                        begin * block_size + start,
                        some,
                    )
                )
            queries += some
    return _arrays(rows, block_size, num_tokens, tiles[0], blocks, queries, raw)


def _nodes(rows: Sequence[Row], block_size: int) -> list[tuple[list[int], list[int], int, int]]:
    """(rows, their common blocks, first column, tokens) of each maximal shared range."""
    found: list[tuple[list[int], list[int], int, int]] = []

    def walk(members: list[int], begin: int) -> None:
        end = begin
        while all(len(rows[r].blocks) > end for r in members) and (
            len({rows[r].blocks[end] for r in members}) == 1
        ):
            end += 1
        if end > begin:
            tokens = min(end * block_size, max(rows[r].length for r in members)) - begin * block_size
            found.append((members, list(rows[members[0]].blocks[:end]), begin, tokens))
        children: dict[int, list[int]] = {}
        for r in members:
            if len(rows[r].blocks) > end:
                children.setdefault(rows[r].blocks[end], []).append(r)
        for child in children.values():
            walk(child, end)

    roots: dict[int, list[int]] = {}
    for r, row in enumerate(rows):
        roots.setdefault(row.blocks[0], []).append(r)
    for members in roots.values():
        walk(members, 0)
    return found


def _arrays(
    rows: Sequence[Row],
    block_size: int,
    num_tokens: int,
    small: int,
    blocks: list[int],
    queries: list[int],
    raw: list[tuple[int, int, int, int, int, list[int]]],
) -> Arrays:
    uses = np.zeros(num_tokens, np.int64)
    for item in raw:
        uses[item[5]] += 1
    items: list[tuple[int, ...]] = []
    parts: list[list[int]] = [[] for _ in range(num_tokens)]
    num_parts = 0
    for *fields, own in raw:
        part = -1
        if (uses[own] > 1).any():
            part = num_parts
            num_parts += len(own)
            for i, query in enumerate(own):
                parts[query].append(part + i)
        items.append((*fields, part, 0, 0))
    merged = [q for q in range(num_tokens) if parts[q] or uses[q] == 0]
    positions = np.zeros(num_tokens, np.int32)
    for row in rows:
        for q in row.queries:
            positions[q] = row.position(q)
    table = np.array(items, np.int32).reshape(-1, 8)
    few = table[:, 1] <= small
    arrays = Arrays(
        table[few],
        table[~few],
        np.array(blocks, np.int32),
        np.array(queries, np.int32),
        positions,
        np.array(merged, np.int32),
        np.cumsum([0, *(len(parts[q]) for q in merged)]).astype(np.int32),
        np.array([p for q in merged for p in parts[q]], np.int32),
        num_parts,
        any(len(row.queries) > 1 for row in rows),
    )
    check_nodes(arrays, max(blocks) + 1, num_tokens, block_size)
    return arrays


def dense_attention(
    query: torch.Tensor,
    kv: torch.Tensor,
    rows: Sequence[Row],
    dtype: torch.dtype,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Each query alone over its gathered keys, every operation in `dtype` -> [T, H, D]."""
    out = torch.zeros(query.shape[1], query.shape[0], query.shape[2], dtype=dtype)
    repeat = query.shape[0] // kv.shape[1]
    for row in rows:
        index = torch.tensor(row.blocks)
        keys, values = kv[:, :, index].flatten(2, 3).to(dtype).repeat_interleave(repeat, 1)
        for q in row.queries:
            end = row.position(q) + 1
            begin = 0 if window is None else max(0, end - window)
            scores = (keys[:, begin:end] @ query[:, q].to(dtype)[:, :, None])[..., 0] * scale
            if softcap is not None:
                scores = torch.tanh(scores / softcap) * softcap
            if sinks is not None:
                scores = torch.cat([scores, sinks.to(dtype)[:, None]], 1)
            weights = torch.softmax(scores, -1)[:, : end - begin]
            out[q] = (weights[:, None] @ values[:, begin:end])[:, 0]
    return out
