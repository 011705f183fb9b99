"""The KV cache's memory: every layer's blocks on the device, and the host's copies of swapped ones."""

from __future__ import annotations

import math
import mmap
from collections import defaultdict

import numpy as np
import torch

from forkdecode.errors import CapacityError
from forkdecode.logs import get_logger
from forkdecode.model.info import DTYPE_BYTES, ModelInfo
from forkdecode.step import I32, BlockMoves
from forkdecode_kernels.copy_blocks import copy_blocks, zero_blocks


def bytes_per_block(info: ModelInfo, block_size: int, dtype: torch.dtype | str) -> int:
    """Bytes that one block of block_size tokens takes, over all layers, keys and values."""
    name = dtype if isinstance(dtype, str) else str(dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise ValueError(f"dtype: {name} is not supported; allowed: {', '.join(DTYPE_BYTES)}")
    return info.kv_token_elements * block_size * DTYPE_BYTES[name]


class KvCache:
    """Blocks of all layers. Layers of equal (K, D) share one tensor [n, 2, K, B + 1, S, D].

    Block B, the last, is never handed out and stays zero: padded reads go there. A CPU's memory is taken
    from the system when a block is first written, not when the cache is made. Raises CapacityError where
    there is not so much memory.
    """

    def __init__(
        self,
        info: ModelInfo,
        block_size: int,
        num_blocks: int,
        num_host_slots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.host_slots = num_host_slots
        self.host_reached = False
        """Whether kernels read and write the host's side themselves, which is to be tried before."""
        self.block_size = block_size
        layers: dict[tuple[int, int], list[int]] = defaultdict(list)
        for layer, shape in enumerate(info.kv_shapes):
            layers[shape].append(layer)
        self._pools: list[torch.Tensor] = []
        self._host: list[torch.Tensor] = []
        by_layer: dict[int, torch.Tensor] = {}
        for (heads, dim), members in layers.items():
            pool = _zeros((len(members), 2, heads, num_blocks + 1, block_size, dim), dtype, device)
            host = _host_zeros((len(members), 2, heads, num_host_slots, block_size, dim), dtype, device)
            self._pools.append(pool)
            self._host.append(host)
            by_layer.update(zip(members, pool.unbind(0), strict=True))
        self._layers = tuple(by_layer[layer] for layer in range(info.num_layers))

    @property
    def null_block(self) -> int:
        return self.num_blocks

    def layer(self, layer: int) -> torch.Tensor:
        """[2, K, B + 1, S, D] of one layer."""
        return self._layers[layer]

    def copy(self, moves: BlockMoves) -> None:
        """Block to block, all layers. Sources and targets are disjoint."""
        self._move(self._pools, self._pools, moves)

    def swap_out(self, moves: BlockMoves) -> None:
        """source: blocks, target: host slots."""
        self._move(self._pools, self._host, moves, reached=self.host_reached)

    def swap_in(self, moves: BlockMoves) -> None:
        """source: host slots, target: blocks."""
        self._move(self._host, self._pools, moves, reached=self.host_reached)

    def zero(self, blocks: I32) -> None:
        """Clears blocks of all layers."""
        if len(blocks):
            index = torch.from_numpy(blocks.astype(np.int64))
            for pool in self._pools:
                zero_blocks(pool, index)

    def _move(
        self,
        sources: list[torch.Tensor],
        targets: list[torch.Tensor],
        moves: BlockMoves,
        *,
        reached: bool = False,
    ) -> None:
        if len(moves):
            pairs = torch.from_numpy(np.stack([moves.source, moves.target], 1).astype(np.int64))
            for source, target in zip(sources, targets, strict=True):
                copy_blocks(source, target, pairs, reached=reached)


_CPU = torch.device("cpu")
_log = get_logger(__name__)


def _host_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """On the host; page-locked, where that is to be had, for a GPU, which then reaches it itself."""
    if device.type == "cuda" and 0 not in shape:
        try:
            return torch.zeros(shape, dtype=dtype, pin_memory=True)
        except RuntimeError as error:
            _log.warning("swap_not_page_locked", reason=f"{type(error).__name__}: {error}")
    return _zeros(shape, dtype, _CPU)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    count = math.prod(shape)
    if device.type != "cpu" or count == 0:
        try:
            return torch.zeros(shape, dtype=dtype, device=device)
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                f"kv_memory: {device} has no {count * dtype.itemsize / 2**30:.1f} GiB free for KV blocks; "
                "allowed: less than the memory that is free",
                field="kv_memory",
            ) from error
    # Anonymous pages are zero and cost no memory until they are touched; torch.zeros touches all.
    size = count * dtype.itemsize
    try:
        # Private where the system knows the word: shared pages would be charged as a file's.
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
        pages = mmap.mmap(-1, size, **private)
    except OSError as error:
        raise CapacityError(
            f"kv_memory: the system can't reserve {size / 2**30:.1f} GiB of KV blocks ({error.strerror}); "
            "allowed: less than the memory that is free",
            field="kv_memory",
        ) from error
    return torch.frombuffer(pages, dtype=dtype, count=count).view(shape)
