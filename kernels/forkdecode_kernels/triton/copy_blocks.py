"""Block copies: one launch for every layer, keys and values."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from forkdecode_kernels.triton.tiles import FUSED, power_of_two

ELEMENTS = 4096
"""Elements that a program moves."""


@triton.jit
def copy_blocks_kernel(
    source_ptr,
    target_ptr,
    pairs_ptr,
    count_ptr,
    num_slices,
    size,
    stride_source_slice,
    stride_source_block,
    stride_target_slice,
    stride_target_block,
    SLICES: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Grid (pairs, slices / SLICES, size / CHUNK). A slice is one layer's keys or values of one head;
    a block is `size` consecutive elements of each. Pairs past *count are left alone.
    """
    pair = tl.program_id(0)
    if pair < tl.load(count_ptr):
        source = tl.load(pairs_ptr + 2 * pair).to(tl.int64)
        target = tl.load(pairs_ptr + 2 * pair + 1).to(tl.int64)
        piece = tl.program_id(1) * SLICES + tl.arange(0, SLICES)
        at = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
        mask = (piece < num_slices)[:, None] & (at < size)[None, :]
        piece = piece.to(tl.int64)[:, None]
        read = source_ptr + source * stride_source_block + piece * stride_source_slice + at[None, :]
        write = target_ptr + target * stride_target_block + piece * stride_target_slice + at[None, :]
        tl.store(write, tl.load(read, mask=mask), mask=mask)


def program_shape(size: int) -> tuple[int, int]:
    """Slices and elements of each that a program moves, for blocks of `size` elements a slice."""
    chunk = min(power_of_two(size), ELEMENTS)
    return ELEMENTS // chunk, chunk


def copy_blocks(source: torch.Tensor, target: torch.Tensor, pairs: torch.Tensor, count: torch.Tensor) -> None:
    """target[..., pairs[i, 1], :, :] = source[..., pairs[i, 0], :, :] for each i < count[0].

    source, target [..., B, S, D] contiguous on one device; pairs [n, 2] int64, count [1] int32 there too.
    """
    if not (source.is_contiguous() and target.is_contiguous() and pairs.is_contiguous()):
        raise ValueError("source, target and pairs must be contiguous")
    size = source.shape[-1] * source.shape[-2]
    num_slices = source.shape[:-3].numel()
    slices, chunk = program_shape(size)
    # As raw integers: the copy is of bits, whatever they stand for.
    raw = {2: torch.int16, 4: torch.int32}[source.element_size()]
    copy_blocks_kernel[(len(pairs), triton.cdiv(num_slices, slices), triton.cdiv(size, chunk))](
        source.view(raw),
        target.view(raw),
        pairs,
        count,
        num_slices,
        size,
        size * source.shape[-3],
        size,
        size * target.shape[-3],
        size,
        SLICES=slices,
        CHUNK=chunk,
        num_warps=4,
        **FUSED,
    )
