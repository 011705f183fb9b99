"""New keys and values into their slots."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from forkdecode_kernels.triton.tiles import FUSED, power_of_two


@triton.jit
def write_kv_kernel(
    key_ptr,
    value_ptr,
    cache_ptr,
    slots_ptr,
    stride_kh,
    stride_kt,
    stride_vh,
    stride_vt,
    stride_half,
    stride_head,
    stride_block,
    stride_slot,
    NUM_HEADS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Grid (tokens, heads / BLOCK_H). A token of slot -1 is written nowhere."""
    token = tl.program_id(0)
    slot = tl.load(slots_ptr + token)
    if slot >= 0:
        head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
        lane = tl.arange(0, PADDED_DIM)
        mask = (head < NUM_HEADS)[:, None] & (lane < HEAD_DIM)[None, :]
        wide = head.to(tl.int64)[:, None]
        at = token.to(tl.int64)
        key = tl.load(key_ptr + at * stride_kt + wide * stride_kh + lane[None, :], mask=mask)
        value = tl.load(value_ptr + at * stride_vt + wide * stride_vh + lane[None, :], mask=mask)
        place = slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_slot
        write = cache_ptr + place + wide * stride_head + lane[None, :]
        tl.store(write, key, mask=mask)
        tl.store(write + stride_half, value, mask=mask)


def program_shape(heads: int, dim: int) -> tuple[int, int]:
    """Heads that a program writes, and lanes for each."""
    padded = power_of_two(dim)
    return min(power_of_two(heads), max(1, 2048 // padded)), padded


def write_kv(kv: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    """See forkdecode_kernels.write_kv; slots of -1 are skipped."""
    heads, dim = kv.shape[1], kv.shape[4]
    key = key if key.stride(2) == 1 else key.contiguous()
    value = value if value.stride(2) == 1 else value.contiguous()
    block_h, padded = program_shape(heads, dim)
    raw = {2: torch.int16, 4: torch.int32}[kv.element_size()]
    write_kv_kernel[(len(slots), triton.cdiv(heads, block_h))](
        key.view(raw),
        value.view(raw),
        kv.view(raw),
        slots,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        *kv.stride()[:4],
        NUM_HEADS=heads,
        BLOCK_H=block_h,
        HEAD_DIM=dim,
        PADDED_DIM=padded,
        BLOCK_SIZE=kv.shape[3],
        num_warps=2,
        **FUSED,
    )
