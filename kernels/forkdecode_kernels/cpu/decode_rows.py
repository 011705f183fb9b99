"""Decode rows for the compiled kernel: all groups of a step as arrays.

A block is read where it lies, once for up to QUERY_ROWS query rows of its group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.attention_work import I32
from forkdecode_kernels.cpu.heads import QUERY_ROWS
from forkdecode_kernels.cpu.tables import Tables


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """Groups for the compiled kernel, as arrays; those of many rows in parts.

    groups [N, 8]: token_start, rows, trunk blocks, where the trunk and the tails begin in `blocks`,
    columns of the tails, hidden tokens, context_len.
    """

    groups: NDArray[np.int64]
    blocks: I32
    query_rows: int
    """R * G of the largest."""
    products: int
    """Query rows times tokens, over all groups."""


def plan_rows(groups: Sequence[Tables], group_size: int) -> RowsPlan | None:
    """group_size G: query heads of a kv head."""
    if not groups:
        return None
    most = max(1, QUERY_ROWS // group_size)
    table: list[tuple[int, ...]] = []
    blocks: list[I32] = []
    end = products = 0
    for g in groups:
        rows, columns = g.tails.shape
        for first in range(0, rows, most):
            part = min(most, rows - first)
            tails = end + len(g.trunk) + first * columns
            table.append((
                g.token_start + first, part, len(g.trunk), end, tails, columns, g.hidden, g.context,
            ))  # fmt: skip
        blocks += (g.trunk, g.tails.reshape(-1))
        end += len(g.trunk) + g.tails.size
        products += rows * g.context
    array = np.array(table, dtype=np.int64)
    widest = int(array[:, 1].max()) * group_size
    return RowsPlan(array, np.concatenate(blocks).astype(np.int32), widest, products * group_size)
