"""How many tokens' keys and values an AttentionPlan of the CPU reads, counted as its kernels go over them."""

from __future__ import annotations

import numpy as np

from forkdecode_kernels.attention_work import AttentionWork, DecodeLike, SegmentLike
from forkdecode_kernels.cpu.attend import FEW
from forkdecode_kernels.cpu.attention import CpuAttentionPlan
from forkdecode_kernels.cpu.decode_rows import RowsPlan


def tokens_read(plan: AttentionWork | CpuAttentionPlan, group_size: int) -> int:
    """By a kv head of one layer. group_size G: query heads of a kv head.

    Blocks are read whole from the first that a query sees. A group's rows read their trunk together, those of
    the compiled kernels at most QUERY_ROWS query rows at a time, and no more than FEW each for itself; what
    lies behind the trunk each row reads for itself. A segment reads its context once: the tiles that it is
    cut into lie side by side, and find it in a cache. The reference, whose plan is the work, reads all that
    lies before a query for each of them.
    """
    if isinstance(plan, AttentionWork):
        return sum([_by_queries(s) for s in plan.segments]) + sum(
            [len(d.tails) * d.context_len for d in plan.decodes]
        )
    work, size, window = plan.work, plan.work.block_size, plan.window
    read = sum([_by_segment(s, size, window) for s in work.segments])
    if plan.rows is not None:
        return read + _by_rows(plan.rows, size, group_size)
    return read + sum([_by_group(d, size, window) for d in work.decodes])


def _by_queries(segment: SegmentLike) -> int:
    count = segment.token_count
    return count * segment.position + count * (count + 1) // 2


def _by_segment(segment: SegmentLike, block_size: int, window: int | None) -> int:
    end = segment.position + segment.token_count
    return end - _begin(segment.position + 1, block_size, window)


def _by_rows(plan: RowsPlan, block_size: int, group_size: int) -> int:
    """What cpu/attend.py reads."""
    _, rows, trunk, _, _, _, _, context = plan.groups.T
    shared = trunk * block_size
    times = np.where(rows * group_size > FEW, 1, rows)
    return int(times @ shared + rows @ (context - shared))


def _by_group(group: DecodeLike, block_size: int, window: int | None) -> int:
    """What cpu/decode.py reads: the trunk once, and each row's tail."""
    begin, trunk = _begin(group.context_len, block_size, window), len(group.trunk) * block_size
    return max(0, trunk - begin) + len(group.tails) * (group.context_len - max(begin, trunk))


def _begin(context: int, block_size: int, window: int | None) -> int:
    """Of the first block that a query sees which has `context` tokens up to itself."""
    return 0 if window is None else max(0, context - window) // block_size * block_size
