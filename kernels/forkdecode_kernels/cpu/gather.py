"""Reading blocks for matrix products: in place where their ids are consecutive, else copied once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from forkdecode_kernels.attention_work import I32


@dataclass(frozen=True, slots=True)
class KvRead:
    """`sequences` runs of `length` tokens each (N, L), as [K * N, L, D] keys and values.

    index: rows of the cache seen as [2 * K * B, S * D], or None for a run that starts at block
    first_block and is read in place (N = 1). Both ways hand the matrix product equal strides
    within a head, so that they give equal bits.
    """

    sequences: int
    length: int
    first_block: int
    index: torch.Tensor | None

    def read(self, kv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """kv [2, K, B, S, D], contiguous -> keys, values [K * N, L, D]."""
        _, heads, _, size, dim = kv.shape
        if self.index is None:
            start = self.first_block * size
            keys, values = kv.flatten(2, 3)[:, :, start : start + self.length]
            return keys, values
        rows = kv.view(-1, size * dim).index_select(0, self.index)
        keys, values = rows.view(2, heads * self.sequences, self.length, dim)
        return keys, values


def block_rows(blocks: I32, kv: torch.Tensor) -> torch.Tensor:
    """Block ids [n] -> rows [2 * K * n] of the cache seen as [2 * K * B, S * D]."""
    planes = np.arange(2 * kv.shape[1], dtype=np.int64)[:, None] * kv.shape[2]
    return torch.from_numpy((planes + blocks.reshape(1, -1)).reshape(-1))


def read_tables(tables: Sequence[I32], length: int, null_block: int, kv: torch.Tensor) -> KvRead:
    """Tables of up to length / S blocks each, padded with the null block; always copied."""
    padded = np.full((len(tables), length // kv.shape[3]), null_block, dtype=np.int32)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    return KvRead(len(tables), length, 0, block_rows(padded, kv))


def read_run(blocks: I32, length: int, null_block: int, kv: torch.Tensor) -> KvRead:
    """One table, in place when its blocks are consecutive and cover `length` tokens."""
    if len(blocks) * kv.shape[3] == length and bool((np.diff(blocks) == 1).all()):
        return KvRead(1, length, int(blocks[0]), None)
    return read_tables([blocks], length, null_block, kv)
