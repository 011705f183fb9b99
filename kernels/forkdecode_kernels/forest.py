"""Block tables -> the node list that attention on a GPU runs from, in one compiled call.

What forkdecode.kv.forest_plan does with numpy, array for array; there it says what a node is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.forest.listing import list_forest as _list_forest

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ForestShape:
    """What items are cut for.

    tiles: queries that an item of the small and of the large tile shape holds. group: query heads of a kv
    head. processors: of the GPU; long nodes are split until these are busy. split_tokens: if given, every
    node is split at the multiples of this, and all items are large; a multiple of the block size. window:
    keys that a query sees, None for all.
    """

    block_size: int
    tiles: tuple[int, int]
    group: int
    num_kv_heads: int
    processors: int
    split_tokens: int | None = None
    window: int | None = None


class Forest(NamedTuple):
    """queries, positions, merged, merge_offsets, merge_parts, num_parts: of node_list.NodeArrays.

    table [n, 8]: the items, the first num_small of them for the small tile shape. spans [3, n]: of each item
    where it begins, where it ends at the latest, and the last group that reads it, whose context may end it
    before. nodes [3, m]: the same of the nodes. So a context that grows inside its last block changes
    lengths and positions alone.
    """

    queries: I32
    positions: I32
    table: I32
    num_small: int
    spans: I64
    nodes: I64
    merged: I32
    merge_offsets: I32
    merge_parts: I32
    num_parts: int


def list_forest(blocks: I32, groups: I64, num_tokens: int, shape: ForestShape) -> Forest:
    """blocks: of each group its trunk, then each row's tail. groups [6, G]: of each the first query token,
    rows, queries of each row, context (its last queries' own tokens included), blocks of the trunk, and
    columns of the tails. num_tokens: all query tokens of the step; those of no group become zeros.

    Raises ValueError where sizes don't fit together.
    """
    if groups.ndim != 2 or len(groups) != 6:
        raise ValueError(f"groups {groups.shape} must be [6, G]")
    if shape.split_tokens is not None and shape.split_tokens % shape.block_size:
        raise ValueError(f"split_tokens: {shape.split_tokens} is no multiple of {shape.block_size}")
    return Forest(
        *_list_forest(
            blocks,
            groups,
            num_tokens,
            shape.block_size,
            *shape.tiles,
            shape.group,
            shape.num_kv_heads,
            shape.processors,
            shape.split_tokens or 0,
            shape.window or 0,
        )
    )


def warm_up() -> None:
    """Compiles what list_forest needs, or loads it: tens of milliseconds, or seconds the first time."""
    groups = np.array([[0], [2], [1], [5], [1], [1]], np.int64)
    list_forest(np.arange(3, dtype=np.int32), groups, 2, ForestShape(4, (1, 2), 1, 1, 1))
