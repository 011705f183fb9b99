"""Attention over a node list: one program an item and kv head, partial results where a query has several."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from forkdecode_kernels.node_list import NodeList
from forkdecode_kernels.triton.attend import attend, heads_of, normalized, with_sink
from forkdecode_kernels.triton.device import family
from forkdecode_kernels.triton.numerics import INTERPRETED, narrowed
from forkdecode_kernels.triton.tiles import (
    attention_tiles,
    merge_launch,
    padded_dim,
    power_of_two,
    share_heads,
)


@triton.jit
def node_attention_kernel(
    q_ptr,
    key_ptr,
    value_ptr,
    out_ptr,
    part_ptr,
    lse_ptr,
    sink_ptr,
    items_ptr,
    count_ptr,
    blocks_ptr,
    queries_ptr,
    positions_ptr,
    scale,
    softcap,
    window,
    stride_qh,
    stride_qt,
    stride_kvh,
    stride_block,
    stride_slot,
    stride_ot,
    stride_oh,
    GROUP: tl.constexpr,
    SHARE: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    EMULATE: tl.constexpr,
):
    """Grid (items, K * shares). Items past *count do nothing, so that one captured graph serves every plan.

    BLOCK_M rows hold the BLOCK_M // SHARE queries of an item times the SHARE query heads, of one kv head,
    that are the program's. See forkdecode_kernels.node_list for the fields of an item.
    """
    item = tl.program_id(0)
    if item < tl.load(count_ptr):
        field_ptr = items_ptr + item * 8
        first_query = tl.load(field_ptr)
        num_queries = tl.load(field_ptr + 1)
        first_block = tl.load(field_ptr + 2)
        num_tokens = tl.load(field_ptr + 3)
        first_position = tl.load(field_ptr + 4)
        part = tl.load(field_ptr + 5)

        lane_m = tl.arange(0, BLOCK_M)
        lane_d = tl.arange(0, PADDED_DIM)
        query = lane_m // SHARE
        kv_head, head, own = heads_of(tl.program_id(1), lane_m % SHARE, GROUP, SHARE)
        live = (query < num_queries) & (query < BLOCK_M // SHARE) & own
        mask = live[:, None] & (lane_d < HEAD_DIM)[None, :]
        row = tl.load(queries_ptr + first_query + query, mask=live, other=0).to(tl.int64)
        q_at = q_ptr + (row * stride_qt + head * stride_qh)[:, None] + lane_d[None, :]
        q = tl.load(q_at, mask=mask, other=0.0)
        if EMULATE:
            q = q.to(tl.float32)

        position = lane_m
        begin = 0
        if CAUSAL or WINDOW:
            position = tl.load(positions_ptr + row, mask=live, other=0)
        if WINDOW:
            # Tiles that no query sees are skipped; a tile of masked keys changes no bit.
            earliest = tl.min(tl.where(live, position, 2147483647), 0) - window + 1 - first_position
            begin = tl.maximum(earliest, 0) // BLOCK_N * BLOCK_N
        if CAUSAL:
            latest = tl.max(tl.where(live, position, -1), 0) + 1 - first_position
            num_tokens = tl.minimum(num_tokens, latest)

        head_offset = kv_head.to(tl.int64) * stride_kvh
        best, total, acc = attend(
            q,
            position,
            key_ptr + head_offset,
            value_ptr + head_offset,
            blocks_ptr + first_block,
            begin,
            num_tokens,
            first_position,
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
            CAUSAL,
            WINDOW,
            SOFTCAP,
            EMULATE,
        )
        if part < 0:
            if SINKS:
                sink = tl.load(sink_ptr + head, mask=live, other=0.0).to(tl.float32)
                best, total, acc = with_sink(best, total, acc, sink * 1.4426950408889634)
            result, _ = normalized(best, total, acc)
            out_at = out_ptr + (row * stride_ot + head * stride_oh)[:, None] + lane_d[None, :]
            tl.store(out_at, narrowed(result, out_ptr.dtype.element_ty, EMULATE), mask=mask)
        else:
            result, lse = normalized(best, total, acc)
            slot = (part + query).to(tl.int64) * NUM_HEADS + head
            tl.store(part_ptr + slot[:, None] * HEAD_DIM + lane_d[None, :], result, mask=mask)
            tl.store(lse_ptr + slot, lse, mask=live)


@triton.jit
def merge_parts_kernel(
    part_ptr,
    lse_ptr,
    out_ptr,
    sink_ptr,
    count_ptr,
    queries_ptr,
    offsets_ptr,
    parts_ptr,
    stride_ot,
    stride_oh,
    GROUP: tl.constexpr,
    SHARE: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    BLOCK_G: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    SINKS: tl.constexpr,
    EMULATE: tl.constexpr,
):
    """Grid (queries, K * shares): each query's parts, in the order of the list, become its output.

    A query without parts gets zeros. The fixed order makes the result independent of the batch.
    """
    i = tl.program_id(0)
    if i < tl.load(count_ptr):
        lane_g = tl.arange(0, BLOCK_G)
        lane_d = tl.arange(0, PADDED_DIM)
        _, head, live = heads_of(tl.program_id(1), lane_g, GROUP, SHARE)
        mask = live[:, None] & (lane_d < HEAD_DIM)[None, :]
        best = tl.full([BLOCK_G], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_G], tl.float32)
        acc = tl.zeros([BLOCK_G, PADDED_DIM], tl.float32)
        for j in range(tl.load(offsets_ptr + i), tl.load(offsets_ptr + i + 1)):
            slot = tl.load(parts_ptr + j).to(tl.int64) * NUM_HEADS + head
            lse = tl.load(lse_ptr + slot, mask=live, other=float("-inf"))
            values = tl.load(part_ptr + slot[:, None] * HEAD_DIM + lane_d[None, :], mask=mask, other=0.0)
            higher = tl.maximum(best, lse)
            shift = tl.where(higher == float("-inf"), 0.0, higher)
            decay = tl.exp2(best - shift)
            weight = tl.exp2(lse - shift)
            acc = acc * decay[:, None] + values * weight[:, None]
            total = total * decay + weight
            best = higher
        if SINKS:
            sink = tl.load(sink_ptr + head, mask=live, other=0.0).to(tl.float32)
            best, total, acc = with_sink(best, total, acc, sink * 1.4426950408889634)
        result, _ = normalized(best, total, acc)
        row = tl.load(queries_ptr + i).to(tl.int64)
        out_at = out_ptr + (row * stride_ot + head * stride_oh)[:, None] + lane_d[None, :]
        tl.store(out_at, narrowed(result, out_ptr.dtype.element_ty, EMULATE), mask=mask)


def node_attention(
    query: torch.Tensor,
    kv: torch.Tensor,
    nodes: NodeList,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """See forkdecode_kernels.node_attention. Three launches at most: two tile shapes and the merge."""
    heads, tokens, dim = query.shape
    out = torch.empty(tokens, heads, dim, dtype=query.dtype, device=query.device)
    values = torch.empty(nodes.num_parts, heads, dim, dtype=torch.float32, device=query.device)
    lse = torch.empty(nodes.num_parts, heads, dtype=torch.float32, device=query.device)
    num_kv_heads, kind = kv.shape[1], family(query.device)
    group = heads // num_kv_heads
    share = share_heads(dim, query.element_size(), group, kind)
    programs = num_kv_heads * triton.cdiv(group, share)
    query = query if query.stride(2) == 1 else query.contiguous()
    common = {
        "GROUP": group,
        "NUM_HEADS": heads,
        "HEAD_DIM": dim,
        "PADDED_DIM": padded_dim(dim),
        "SINKS": sinks is not None,
        "EMULATE": INTERPRETED,
    }
    tiles = attention_tiles(dim, query.element_size(), group, kind)
    for i, (tile, items) in enumerate(zip(tiles, (nodes.small_items, nodes.large_items), strict=True)):
        if not len(items):
            continue
        node_attention_kernel[(len(items), programs)](
            query,
            kv[0],
            kv[1],
            out,
            values,
            lse,
            sinks,
            items,
            nodes.counts[i],
            nodes.blocks,
            nodes.queries,
            nodes.positions,
            scale,
            softcap if softcap is not None else 0.0,
            window if window is not None else 0,
            query.stride(0),
            query.stride(1),
            kv.stride(1),
            kv.stride(2),
            kv.stride(3),
            out.stride(0),
            out.stride(1),
            **common,
            SHARE=share,
            BLOCK_M=tile.block_m,
            BLOCK_N=tile.block_n,
            BLOCK_SIZE=kv.shape[3],
            CAUSAL=nodes.causal,
            WINDOW=window is not None,
            SOFTCAP=softcap is not None,
            **tile.launch(score_options=nodes.causal or window is not None or softcap is not None),
        )
    if len(nodes.merged):
        merged, options = merge_launch(group, dim)
        merge_parts_kernel[(len(nodes.merged), num_kv_heads * triton.cdiv(group, merged))](
            values,
            lse,
            out,
            sinks,
            nodes.counts[2],
            nodes.merged,
            nodes.merge_offsets,
            nodes.merge_parts,
            out.stride(0),
            out.stride(1),
            **common,
            SHARE=merged,
            BLOCK_G=power_of_two(merged),
            **options,
        )
    return out
