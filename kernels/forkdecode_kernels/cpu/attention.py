"""The fast CPU attention: blocks are read once for all sharers, by compiled kernels; float16 by torch's
matrix products."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from forkdecode_kernels.attention_work import AttentionWork
from forkdecode_kernels.cpu.decode import DecodeBatch, plan_decode, run_batch
from forkdecode_kernels.cpu.decode_rows import RowsPlan, plan_rows
from forkdecode_kernels.cpu.half import DTYPES
from forkdecode_kernels.cpu.operands import contiguous
from forkdecode_kernels.cpu.prefill import PrefillTile, plan_prefill, run_tile
from forkdecode_kernels.cpu.row_work import run_rows
from forkdecode_kernels.cpu.segment_work import run_segments
from forkdecode_kernels.cpu.segments import SegmentsPlan, plan_segments
from forkdecode_kernels.cpu.tables import clip


@dataclass(frozen=True, slots=True)
class CpuAttentionPlan:
    """A step's work, for the compiled kernels (rows, segments) or in batches of products (decode, tiles).

    It serves every layer of equal heads, cache shape and window.
    """

    work: AttentionWork
    window: int | None
    rows: RowsPlan | None
    segments: SegmentsPlan | None
    decode: tuple[DecodeBatch, ...]
    output_index: torch.Tensor
    tiles: tuple[PrefillTile, ...]

    @property
    def covers(self) -> bool:
        """Whether every token is written: none is padding."""
        asked = [s.token_count for s in self.work.segments] + [len(d.tails) for d in self.work.decodes]
        return sum(asked) == self.work.num_tokens


def plan_cpu_attention(
    work: AttentionWork, *, num_heads: int, kv: torch.Tensor, window: int | None
) -> CpuAttentionPlan:
    """See forkdecode_kernels.attention.plan_attention."""
    groups = [clip(d, work.block_size, window) for d in work.decodes]
    group_size, nowhere = num_heads // kv.shape[1], torch.empty(0, dtype=torch.int64)
    if kv.dtype in DTYPES:
        rows, segments = plan_rows(groups, group_size), plan_segments(work.segments, group_size, window)
        return CpuAttentionPlan(work, window, rows, segments, (), nowhere, ())
    decode = plan_decode(groups, work, num_heads, kv)
    index = torch.cat([batch.output_index for batch in decode]) if decode else nowhere
    return CpuAttentionPlan(work, window, None, None, decode, index, plan_prefill(work, kv, window))


def cpu_attention(
    query: torch.Tensor,
    kv: torch.Tensor,
    plan: CpuAttentionPlan,
    *,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """query [H, T, D], kv [2, K, B, S, D] -> [T, H, D]; see forkdecode_kernels.attention.attention."""
    heads, tokens, dim = query.shape
    out = query.new_empty(tokens, heads, dim) if plan.covers else query.new_zeros(tokens, heads, dim)
    if plan.rows is not None:
        run_rows(plan.rows, contiguous(query, kv, out, scale, softcap, sinks))
    if plan.segments is not None:
        run_segments(plan.segments, contiguous(query, kv, out, scale, softcap, sinks))
    if plan.decode:
        flat = query.reshape(-1, dim)
        parts = [run_batch(batch, flat, kv, scale, softcap, sinks) for batch in plan.decode]
        rows = parts[0] if len(parts) == 1 else torch.cat(parts)
        out.view(-1, dim).index_copy_(0, plan.output_index, rows)
    for tile in plan.tiles:
        result = run_tile(tile, query, kv, scale, softcap, sinks)
        out[tile.token_start : tile.token_start + tile.count] = result.transpose(0, 1)
    return out
