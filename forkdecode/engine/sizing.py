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


def size_pool(config: EngineConfig, bytes_per_block: int, free_memory: int) -> Capacity:
    """The pool that `config` asks for. free_memory: bytes now free on the KV cache's device.

    Raises CapacityError when not even a block fits.
    """
    if config.num_blocks is not None:
        blocks = config.num_blocks
    else:
        share = config.memory_share()
        budget = int(free_memory * share) if share is not None else parse_bytes("kv_memory", config.kv_memory)
        if share is None and budget > free_memory:
            raise CapacityError(
                f"kv_memory: {budget:,} bytes asked for, {free_memory:,} are free", field="kv_memory"
            )
        blocks = budget // bytes_per_block
    if blocks < 1:
        raise CapacityError(
            f"kv_memory: a block of {config.block_size} tokens takes {bytes_per_block:,} bytes; none fits",
            field="kv_memory",
        )
    host_slots = parse_bytes("swap_memory", config.swap_memory) // bytes_per_block
    return Capacity(blocks, config.block_size, bytes_per_block, host_slots)
