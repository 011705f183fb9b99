"""Plain paged decode: one row a program, no sharing. What benchmarks compare the node list with."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from forkdecode_kernels.triton.attend import attend, heads_of, normalized, with_sink
from forkdecode_kernels.triton.device import family
from forkdecode_kernels.triton.node_attention import merge_parts_kernel
from forkdecode_kernels.triton.numerics import INTERPRETED, narrowed
from forkdecode_kernels.triton.tiles import (
    attention_tiles,
    merge_launch,
    padded_dim,
    power_of_two,
    share_heads,
)


@triton.jit
def paged_decode_kernel(
    q_ptr,
    key_ptr,
    value_ptr,
    out_ptr,
    part_ptr,
    lse_ptr,
    sink_ptr,
    tables_ptr,
    lengths_ptr,
    scale,
    softcap,
    window,
    stride_qh,
    stride_qt,
    stride_kvh,
    stride_block,
    stride_slot,
    stride_table,
    stride_ot,
    stride_oh,
    GROUP: tl.constexpr,
    SHARE: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    EMULATE: tl.constexpr,
):
    """Grid (R, K * shares, NUM_SPLITS). Row r attends to the first lengths[r] tokens of tables[r]."""
    row = tl.program_id(0)
    split = tl.program_id(2)
    length = tl.load(lengths_ptr + row)
    first = 0
    if WINDOW:
        first = tl.maximum(length - window, 0) // BLOCK_N * BLOCK_N
    each = tl.cdiv(tl.cdiv(length - first, NUM_SPLITS), BLOCK_N) * BLOCK_N
    begin = first + split * each
    end = tl.minimum(begin + each, length)

    lane_m = tl.arange(0, BLOCK_M)
    lane_d = tl.arange(0, PADDED_DIM)
    kv_head, head, live = heads_of(tl.program_id(1), lane_m, GROUP, SHARE)
    mask = live[:, None] & (lane_d < HEAD_DIM)[None, :]
    q_at = q_ptr + row.to(tl.int64) * stride_qt + (head * stride_qh)[:, None] + lane_d[None, :]
    q = tl.load(q_at, mask=mask, other=0.0)
    if EMULATE:
        q = q.to(tl.float32)
    head_offset = kv_head.to(tl.int64) * stride_kvh
    best, total, acc = attend(
        q,
        lane_m * 0 + length - 1,
        key_ptr + head_offset,
        value_ptr + head_offset,
        tables_ptr + row.to(tl.int64) * stride_table,
        begin,
        end,
        0,
        scale,
        softcap,
        window,
        stride_block,
        stride_slot,
        BLOCK_M,
        BLOCK_N,
        HEAD_DIM,
        PADDED_DIM,
        BLOCK_SIZE,
        False,
        WINDOW,
        SOFTCAP,
        EMULATE,
    )
    if NUM_SPLITS == 1:
        if SINKS:
            sink = tl.load(sink_ptr + head, mask=live, other=0.0).to(tl.float32)
            best, total, acc = with_sink(best, total, acc, sink * 1.4426950408889634)
        result, _ = normalized(best, total, acc)
        out_at = out_ptr + row.to(tl.int64) * stride_ot + (head * stride_oh)[:, None] + lane_d[None, :]
        tl.store(out_at, narrowed(result, out_ptr.dtype.element_ty, EMULATE), mask=mask)
    else:
        result, lse = normalized(best, total, acc)
        slot = (row * NUM_SPLITS + split).to(tl.int64) * NUM_HEADS + head
        tl.store(part_ptr + slot[:, None] * HEAD_DIM + lane_d[None, :], result, mask=mask)
        tl.store(lse_ptr + slot, lse, mask=live)


def paged_decode(
    query: torch.Tensor,
    kv: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float,
    splits: int,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """See forkdecode_kernels.paged_decode."""
    heads, rows, dim = query.shape
    num_kv_heads = kv.shape[1]
    group = heads // num_kv_heads
    device = query.device
    share = share_heads(dim, query.element_size(), group, family(device))
    programs = num_kv_heads * triton.cdiv(group, share)
    query = query if query.stride(2) == 1 else query.contiguous()
    out = torch.empty(rows, heads, dim, dtype=query.dtype, device=device)
    num_parts = rows * splits if splits > 1 else 0
    values = torch.empty(num_parts, heads, dim, dtype=torch.float32, device=device)
    lse = torch.empty(num_parts, heads, dtype=torch.float32, device=device)
    common = {
        "GROUP": group,
        "NUM_HEADS": heads,
        "HEAD_DIM": dim,
        "PADDED_DIM": padded_dim(dim),
        "SINKS": sinks is not None,
        "EMULATE": INTERPRETED,
    }
    tile, _ = attention_tiles(dim, query.element_size(), group, family(device))
    paged_decode_kernel[(rows, programs, splits)](
        query,
        kv[0],
        kv[1],
        out,
        values,
        lse,
        sinks,
        tables,
        lengths,
        scale,
        softcap if softcap is not None else 0.0,
        window if window is not None else 0,
        query.stride(0),
        query.stride(1),
        kv.stride(1),
        kv.stride(2),
        kv.stride(3),
        tables.stride(0),
        out.stride(0),
        out.stride(1),
        **common,
        SHARE=share,
        NUM_SPLITS=splits,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_SIZE=kv.shape[3],
        WINDOW=window is not None,
        SOFTCAP=softcap is not None,
        **tile.launch(score_options=window is not None or softcap is not None),
    )
    if splits > 1:
        parts = torch.arange(num_parts + 1, dtype=torch.int32, device=device)
        merged, options = merge_launch(group, dim)
        merge_parts_kernel[(rows, num_kv_heads * triton.cdiv(group, merged))](
            values,
            lse,
            out,
            sinks,
            torch.full((1,), rows, dtype=torch.int32, device=device),
            parts,
            parts[::splits].contiguous(),
            parts,
            out.stride(0),
            out.stride(1),
            **common,
            SHARE=merged,
            BLOCK_G=power_of_two(merged),
            **options,
        )
    return out
