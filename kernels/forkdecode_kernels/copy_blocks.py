"""Moves whole blocks, all layers of one shape in one call."""

from __future__ import annotations

import torch

from forkdecode_kernels.cpu import blocks as cpu

PIECE_BYTES = 128 * 1024 * 1024
"""Of blocks that go from device to device together, by way of memory of their own on both."""


def copy_blocks(
    source: torch.Tensor, target: torch.Tensor, pairs: torch.Tensor, *, reached: bool = False
) -> None:
    """target[..., pairs[i, 1], :, :] = source[..., pairs[i, 0], :, :] for each of n pairs.

    source [..., B, S, D] and target [..., B', S, D] may be the same pool; then no block may be
    both read and written. pairs [n, 2] int64, on the CPU. reached: one of them is a GPU's, the other
    page-locked memory that its kernels reach: one launch moves all blocks, and nobody waits for it.
    Raises ValueError on unfit shapes.
    """
    if source.shape[:-3] != target.shape[:-3] or source.shape[-2:] != target.shape[-2:]:
        raise ValueError(f"source {tuple(source.shape)} and target {tuple(target.shape)} hold unlike blocks")
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype != torch.int64:
        raise ValueError(f"pairs is {pairs.dtype} {tuple(pairs.shape)}; must be int64 [n, 2]")
    if not len(pairs):
        return
    if reached or (source.is_cuda and source.device == target.device):
        from forkdecode_kernels.triton import copy_blocks as fast

        device = source.device if source.is_cuda else target.device
        count = torch.full((1,), len(pairs), dtype=torch.int32, device=device)
        fast.copy_blocks(source, target, pairs.to(device), count)
        return
    if source.device.type == target.device.type == "cpu" and cpu.copy_blocks(source, target, pairs):
        return
    block_bytes = source[..., 0, :, :].numel() * source.element_size()
    step = max(1, PIECE_BYTES // block_bytes)
    for first in range(0, len(pairs), step):
        some = pairs[first : first + step]
        blocks = source.flatten(0, -4).index_select(1, some[:, 0].to(source.device))
        target.flatten(0, -4).index_copy_(1, some[:, 1].to(target.device), blocks.to(target.device))


def zero_blocks(pool: torch.Tensor, blocks: torch.Tensor) -> None:
    """Clears pool[..., blocks, :, :]. pool [..., B, S, D], blocks [n] int64."""
    if len(blocks):
        pool.flatten(0, -4).index_fill_(1, blocks.to(pool.device), 0)
