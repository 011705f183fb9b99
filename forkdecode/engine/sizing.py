"""How many KV blocks fit, and what that means in terms a user knows."""

from __future__ import annotations

from dataclasses import dataclass

from forkdecode.config import EngineConfig, parse_bytes
from forkdecode.errors import CapacityError


@dataclass(frozen=True, slots=True)
class Capacity:
    """The block pool of an engine: blocks, their size in tokens and bytes."""

    num_blocks: int
    block_size: int
    bytes_per_block: int
    host_slots: int

    @property
    def tokens(self) -> int:
        return self.num_blocks * self.block_size

    def groups(self, width: int, prompt: int, generated: int) -> int:
        """How many groups of `width` rows on a shared prompt fit at once, full prompt blocks shared."""
        shared = prompt // self.block_size
        tail = -(-(prompt % self.block_size + generated) // self.block_size)
        return self.num_blocks // (shared + width * tail)

    def __str__(self) -> str:
        return (
            f"{self.num_blocks:,} blocks of {self.block_size} tokens = {self.tokens:,} tokens "
            f"({self.num_blocks * self.bytes_per_block / 2**30:.2f} GiB); "
            f"{self.groups(4, 1024, 64):,} beams of 4 at 1K prompt tokens, 64 new ones"
        )


MAX_BLOCKS = 2**31 - 2
"""Block ids are int32."""


def size_pool(
    config: EngineConfig, bytes_per_block: int, free_memory: int, host_memory: int, *, on_gpu: bool = False
) -> Capacity:
    """The pool that `config` asks for. free_memory: bytes now free on the KV cache's device, which is a GPU's
    or the host's; host_memory: bytes that the host has, for swapped blocks.

    Raises CapacityError, naming the setting, for what does not fit.
    """
    return Capacity(
        _num_blocks(config, bytes_per_block, free_memory, on_gpu),
        config.block_size,
        bytes_per_block,
        _host_slots(config, bytes_per_block, host_memory),
    )


def _num_blocks(config: EngineConfig, bytes_per_block: int, free_memory: int, on_gpu: bool) -> int:
    share = config.memory_share(on_gpu=on_gpu)
    field = "kv_memory"
    if config.num_blocks is not None:
        budget, field = config.num_blocks * bytes_per_block, "num_blocks"
    elif share is not None:
        budget = int(free_memory * share)
    else:
        budget = parse_bytes("kv_memory", config.kv_memory)
    if budget > free_memory:
        raise CapacityError(
            f"{field}: asks for {budget:,} bytes, {free_memory:,} are free beside the model and its steps",
            field=field,
        )
    if budget < bytes_per_block:
        raise CapacityError(
            f"{field}: a block of {config.block_size} tokens takes {bytes_per_block:,} bytes; none fits",
            field=field,
        )
    return min(budget // bytes_per_block, MAX_BLOCKS)


def _host_slots(config: EngineConfig, bytes_per_block: int, host_memory: int) -> int:
    budget = parse_bytes("swap_memory", config.swap_memory)
    if budget > host_memory:
        raise CapacityError(
            f"swap_memory: asks for {budget:,} bytes, the host has {host_memory:,}", field="swap_memory"
        )
    return min(budget // bytes_per_block, MAX_BLOCKS)
