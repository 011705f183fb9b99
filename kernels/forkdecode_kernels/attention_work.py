"""What one step's attention has to compute: which query tokens read which blocks.

Shapes: T query tokens, R rows of a group, H query heads, K kv heads, D head_dim, S block_size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]


class SegmentLike(Protocol):
    """Query tokens token_start .. token_start + token_count of one sequence, at `position` and after.

    blocks [n] is the sequence's table from position 0 and covers the last of them.
    """

    @property
    def token_start(self) -> int: ...
    @property
    def token_count(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def blocks(self) -> I32: ...


class DecodeLike(Protocol):
    """R rows of one group, one query token each: shared trunk [nt], own tails [R, C].

    Each row attends to its first context_len tokens; trunk and tails cover them.
    """

    @property
    def token_start(self) -> int: ...
    @property
    def trunk(self) -> I32: ...
    @property
    def tails(self) -> I32: ...
    @property
    def context_len(self) -> int: ...


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """One step's segments and decode rows. Tokens that neither covers are padding: output zero.

    num_tokens: T, padding included. null_block: a block that holds finite numbers at all times;
    padded reads go there, so that nothing is read of a block that is not the group's own.
    """

    segments: tuple[SegmentLike, ...]
    decodes: tuple[DecodeLike, ...]
    num_tokens: int
    block_size: int
    null_block: int


def make_work(
    segments: Sequence[SegmentLike],
    decodes: Sequence[DecodeLike],
    num_tokens: int,
    block_size: int,
    null_block: int,
) -> AttentionWork:
    """Checks the records against each other. Raises ValueError naming the first that is wrong."""
    for s in segments:
        _check(s.token_count > 0, f"segment at token {s.token_start}: token_count is {s.token_count}")
        _check(0 <= s.token_start <= num_tokens - s.token_count, f"segment at token {s.token_start}: T")
        covered, needed = len(s.blocks) * block_size, s.position + s.token_count
        _check(covered >= needed, f"segment at token {s.token_start}: blocks cover {covered} of {needed}")
    for d in decodes:
        _check(d.tails.ndim == 2, f"decode rows at token {d.token_start}: tails must be [R, C]")
        _check(0 <= d.token_start <= num_tokens - len(d.tails), f"decode rows at {d.token_start}: T")
        covered = (len(d.trunk) + d.tails.shape[1]) * block_size
        _check(d.context_len > 0, f"decode rows at token {d.token_start}: context_len {d.context_len}")
        _check(covered >= d.context_len, f"decode rows at {d.token_start}: {covered} < {d.context_len}")
        _check(len(d.trunk) * block_size <= d.context_len, f"decode rows at {d.token_start}: trunk too long")
    return AttentionWork(tuple(segments), tuple(decodes), num_tokens, block_size, null_block)


def _check(ok: bool, problem: str) -> None:
    if not ok:
        raise ValueError(problem)
