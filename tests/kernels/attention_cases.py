"""Random attention work: block tables with shared trunks in a shuffled cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

I32 = NDArray[np.int32]


@dataclass(frozen=True)
class Segment:
    token_start: int
    token_count: int
    position: int
    blocks: I32


@dataclass(frozen=True)
class Rows:
    token_start: int
    trunk: I32
    tails: I32
    context_len: int


@dataclass(frozen=True)
class Shape:
    heads: int = 4
    kv_heads: int = 2
    dim: int = 8
    block_size: int = 4


class Blocks:
    """Hands out block ids of a pool; consecutive ones, or shuffled."""

    def __init__(self, num_blocks: int, rng: np.random.Generator, *, shuffled: bool = True) -> None:
        ids = np.arange(num_blocks, dtype=np.int32)
        self._ids = rng.permutation(ids) if shuffled else ids
        self._next = 0

    def take(self, n: int) -> I32:
        self._next += n
        assert self._next <= len(self._ids)
        return self._ids[self._next - n : self._next].astype(np.int32)


def make_rows(blocks: Blocks, size: int, start: int, rows: int, trunk: int, context: int) -> Rows:
    """`rows` rows with `trunk` shared blocks and `context` tokens."""
    columns = -(-context // size) - trunk
    return Rows(start, blocks.take(trunk), blocks.take(rows * columns).reshape(rows, columns), context)


def make_kv(
    shape: Shape, num_blocks: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """[2, K, B + 1, S, D] with a zero block at the end."""
    kv = torch.randn(2, shape.kv_heads, num_blocks + 1, shape.block_size, shape.dim, generator=generator).to(
        dtype
    )
    kv[:, :, -1] = 0
    return kv


def poison(kv: torch.Tensor, used: I32) -> torch.Tensor:
    """A copy whose blocks outside `used` hold NaN: another group's, or freed ones."""
    copy = kv.clone()
    foreign = np.setdiff1d(np.arange(kv.shape[2] - 1), used)
    copy[:, :, torch.from_numpy(foreign)] = float("nan")
    return copy
