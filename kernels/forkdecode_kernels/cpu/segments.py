"""Query tokens of a prompt without copying a block: one compiled call for all segments of a step.

A few tokens with all their heads are the query rows of a matrix product over the tokens before them. A
token's bits are the same however its prompt is cut into chunks: see cpu/pieces.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.attention_work import I32, SegmentLike
from forkdecode_kernels.cpu.half import Stored, widen
from forkdecode_kernels.cpu.heads import QUERY_ROWS, hand_over
from forkdecode_kernels.cpu.pieces import F32, Scratch, together
from forkdecode_kernels.cpu.selection.jit import inlined

# Below every score but -inf: a row that sees nothing of a piece keeps it, and what it sums stays 0.
_LOWEST = np.float32(np.finfo(np.float32).min)


@dataclass(frozen=True, slots=True)
class SegmentsPlan:
    """tiles [N, 4]: first token, tokens, its position, where its segment's table begins in `blocks`."""

    tiles: NDArray[np.int64]
    blocks: I32
    query_rows: int
    """Tokens times G of the largest."""
    window: int
    """0 is none."""
    products: int
    """Query rows times tokens that they read, over all tiles."""


def plan_segments(
    segments: Sequence[SegmentLike], group_size: int, window: int | None
) -> SegmentsPlan | None:
    """group_size G: query heads of a kv head."""
    if not segments:
        return None
    most = max(1, QUERY_ROWS // group_size)
    tiles, end = [], 0
    for s in segments:
        first = np.arange(0, s.token_count, most, dtype=np.int64)
        count = np.minimum(most, s.token_count - first)
        tiles.append(
            np.stack([s.token_start + first, count, s.position + first, np.full_like(first, end)], 1)
        )
        end += len(s.blocks)
    table = np.concatenate(tiles)
    blocks = np.concatenate([s.blocks for s in segments]).astype(np.int32)
    last = table[:, 2] + table[:, 1]
    seen = last if window is None else np.minimum(last, table[:, 1] + window)
    widest = int(table[:, 1].max()) * group_size
    return SegmentsPlan(table, blocks, widest, window or 0, int((table[:, 1] * seen).sum()) * group_size)


@inlined
def attend_segments(
    query: Stored, kv: Stored, result: Stored, tiles: NDArray[np.int64], blocks: I32, window: int,
    scale: np.float32, softcap: np.float32, sinks: F32, scratch: Scratch, item: int,
) -> None:  # fmt: skip
    """query [H, T, D], kv [2, K, B, S, D] -> result [T, H, D] for one item: one kv head of one of
    SegmentsPlan's tiles. softcap 0 is none; sinks [H] or empty.
    """
    kv_heads, dim = kv.shape[1], kv.shape[4]
    heads = query.shape[0] // kv_heads
    across, state = scratch.across, scratch.state
    token, tokens, position, table_at = tiles[item // kv_heads]
    head, count = item % kv_heads, tokens * heads
    scratch.out[:count] = np.float32(0.0)
    across[:, count:] = np.float32(0.0)
    for m in range(count):
        h, t = head * heads + m % heads, token + m // heads
        for d in range(dim):
            across[d, m] = widen(query[h, t, d]) * scale
        state[0, m] = sinks[h] if sinks.shape[0] > 0 else _LOWEST
        state[1, m] = np.float32(1.0) if sinks.shape[0] > 0 else np.float32(0.0)
    first = max(0, position - window + 1) if window > 0 else 0
    together(
        kv[0, head], kv[1, head], blocks[table_at:], first, position + tokens, position, window, count,
        softcap, scratch,
    )  # fmt: skip
    hand_over(scratch, count, token, head, result)
