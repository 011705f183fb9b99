"""The workloads of gpu_check: rows that share a trunk, as block tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forkdecode.step import I32, DecodeRows


@dataclass(frozen=True)
class Model:
    """One attention layer's shape."""

    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    block_size: int = 16


@dataclass(frozen=True)
class Workload:
    """`groups` groups of `rows` rows behind a trunk of `trunk` tokens, each row with up to `own` tokens.

    fork_every: rows part from each other every so many tokens, so that their tails are a tree.
    """

    name: str
    groups: int
    rows: int
    trunk: int
    own: int
    fork_every: int = 32

    def decodes(self, block_size: int, rng: np.random.Generator) -> tuple[list[DecodeRows], int]:
        """Tables with block ids in random order, and how many blocks there are."""
        columns = max(1, self.own // block_size)
        trunk = self.trunk // block_size
        names = rng.permutation(self.groups * (trunk + self.rows * columns)).astype(np.int32)
        taken = 0

        def take(n: int) -> I32:
            nonlocal taken
            taken += n
            return names[taken - n : taken]

        found, token = [], 0
        for _ in range(self.groups):
            own_trunk = take(trunk)
            tails = np.empty((self.rows, 0), np.int32)
            for column in range(columns):
                if column and column * block_size % self.fork_every == 0:
                    tails = tails[np.sort(rng.integers(0, self.rows, self.rows))]
                tails = np.column_stack([tails, take(self.rows)])
            context = (trunk + columns) * block_size - int(rng.integers(0, block_size))
            found.append(DecodeRows(token, own_trunk, tails, context))
            token += self.rows
        return found, len(names)


FULL = (
    Workload("beam 512 on 2,048", 1, 512, 2048, 128),
    Workload("8 x best-of-32 on 4,096", 8, 32, 4096, 256, 1 << 20),
    Workload("8 x beam 16 on 1,024", 8, 16, 1024, 128),
    Workload("32 x beam 4, ShareGPT-like", 32, 4, 160, 176),
    Workload("64 rows of 2,048, nothing shared", 64, 1, 1920, 128),
    Workload("beam 64 on 256 (fits in L2)", 1, 64, 256, 32),
)
REHEARSAL = (
    Workload("beam 6 on 64", 1, 6, 64, 16),
    Workload("2 rows, nothing shared", 2, 1, 48, 16),
)
