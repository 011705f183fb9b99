"""What an engine is doing, as numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot between two steps. Sums are since the engine started.

    shared_blocks: held more than once. cached_blocks: held by the prefix cache alone, free to take.
    saved: 1 - unique / unshared blocks over all steps and groups. waste: share of the slots in the
    groups' unique blocks that held no token, over all steps (the unused ends of last blocks).
    """

    steps: int
    running_groups: int
    waiting_groups: int
    running_rows: int
    total_blocks: int
    free_blocks: int
    used_blocks: int
    shared_blocks: int
    cached_blocks: int
    unique_block_steps: int
    unshared_block_steps: int
    wasted_slot_steps: int
    block_size: int
    copies: int
    preemptions: int
    swapped_blocks: int
    recomputed_tokens: int
    prefill_tokens: int
    cached_prompt_tokens: int
    generated_tokens: int
    finished_groups: int
    failed_groups: int

    @property
    def saved(self) -> float:
        return 1 - self.unique_block_steps / self.unshared_block_steps if self.unshared_block_steps else 0.0

    @property
    def waste(self) -> float:
        slots = self.unique_block_steps * self.block_size
        return self.wasted_slot_steps / slots if slots else 0.0


@dataclass(slots=True)
class Counters:
    """The running sums behind EngineStats."""

    steps: int = 0
    unique_block_steps: int = 0
    unshared_block_steps: int = 0
    wasted_slot_steps: int = 0
    copies: int = 0
    preemptions: int = 0
    swapped_blocks: int = 0
    recomputed_tokens: int = 0
    prefill_tokens: int = 0
    cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    finished_groups: int = 0
    failed_groups: int = 0
