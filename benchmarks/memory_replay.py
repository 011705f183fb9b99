"""A decoded request run again through the engine's block table, for any block size.

Which rows fork and die does not depend on the block size, so one decoding serves all of them. What
is counted is what the scheduler counts: blocks as they stand while a step runs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from benchmarks.memory_trace import Decoded
from forkdecode.kv.block_pool import BlockPool
from forkdecode.kv.block_table import BlockTable
from forkdecode.kv.forest import unused_slots
from forkdecode.step import I64


@dataclass(frozen=True)
class Counts:
    """Of one request: sums over its steps. Blocks are of the block size; slots and tokens are of one
    token. unshared: what its rows would hold if they shared none."""

    steps: int
    unique_blocks: int
    unshared_blocks: int
    wasted_slots: int
    copies: int
    generated: int

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def replay(decoded: Decoded, block_size: int, pool: BlockPool | None = None) -> Counts:
    """The request's steps on a block table of its own. pool: one to take blocks from, empty."""
    width = max(map(len, decoded.parents))
    longest = decoded.prompt_len + len(decoded.parents)
    pool = pool or BlockPool((width + 1) * (longest // block_size + 2), block_size)
    table = BlockTable.open(pool)
    table.extend(decoded.prompt_len - 1)
    unique = unshared = wasted = copies = generated = 0
    for parents in decoded.parents:
        pool.begin_step()
        copies += len(table.extend(1).copies)
        unique += table.num_unique
        unshared += table.num_unshared
        wasted += unused_slots(table)
        table.advance(parents)
        generated += len(parents)
    table.release()
    return Counts(len(decoded.parents), unique, unshared, wasted, copies, generated)


def ideal_tokens(decoded: Decoded) -> I64:
    """[steps] Nodes of the trie of the live rows' tokens while each step runs: the keys and values that
    differ. Rows that drew the same tokens are one path, though no fork made them so; nothing that
    keeps the whole contexts of all rows can store less."""
    known: dict[tuple[int, int], int] = {}
    paths = np.zeros((1, 0), np.int64)
    found = np.empty(len(decoded.parents), np.int64)
    for step, (parents, tokens) in enumerate(zip(decoded.parents, decoded.tokens, strict=True)):
        found[step] = decoded.prompt_len + len(np.unique(paths))
        above = paths[parents, -1].tolist() if paths.shape[1] else [0] * len(parents)
        nodes = [
            known.setdefault((node, token), len(known) + 1)
            for node, token in zip(above, tokens.tolist(), strict=True)
        ]
        paths = np.column_stack([paths[parents], np.array(nodes, np.int64)])
    return found


def contiguous_tokens(decoded: Decoded, *, reserved: bool) -> I64:
    """[steps] Tokens that beams with a contiguous cache each hold while each step runs, all of them from
    the prompt on; with `reserved` as much as they will ever need. The last token is never computed."""
    width = max(map(len, decoded.parents))
    steps = np.arange(len(decoded.parents))
    return width * (decoded.prompt_len + (np.full_like(steps, steps[-1]) if reserved else steps))
