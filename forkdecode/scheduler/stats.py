"""The running sums of an engine."""

from __future__ import annotations

from dataclasses import dataclass


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
