"""A decode group's tables after a sliding window has cut off what no row sees."""

from __future__ import annotations

from dataclasses import dataclass

from forkdecode_kernels.attention_work import I32, DecodeLike


@dataclass(frozen=True, slots=True)
class Tables:
    """trunk [nt], tails [R, C]; positions count from the first block kept.

    context: tokens from there to the query's own, which is one of them. hidden: leading tokens
    that the window still hides, fewer than one block.
    """

    token_start: int
    trunk: I32
    tails: I32
    context: int
    hidden: int


def clip(group: DecodeLike, block_size: int, window: int | None) -> Tables:
    """Drops the blocks that lie wholly before the window of the group's rows."""
    context = int(group.context_len)
    hidden = max(0, context - window) if window is not None else 0
    drop = hidden // block_size
    in_tails = max(0, drop - len(group.trunk))
    return Tables(
        group.token_start,
        group.trunk[drop:],
        group.tails[:, in_tails:],
        context - drop * block_size,
        hidden - drop * block_size,
    )
