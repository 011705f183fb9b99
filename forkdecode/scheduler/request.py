"""A request as the scheduler sees it: token ids only, everything checked and resolved."""

from __future__ import annotations

from dataclasses import dataclass

from forkdecode.errors import CapacityError
from forkdecode.step import I64, ProcessorSpec
from forkdecode.text.stop import StopAutomaton
from forkdecode.types import Options, Strategy


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """prompt [P] int64, P >= 1. eos_ids and stop_ids end a candidate; eos_ids is empty under
    ignore_eos. stream: whether per-step events are wanted besides the outcome.
    """

    request_id: str
    prompt: I64
    strategy: Strategy
    options: Options
    seed: int
    processors: ProcessorSpec
    eos_ids: I64
    stop_ids: I64
    automaton: StopAutomaton | None
    stream: bool = False

    @property
    def prompt_len(self) -> int:
        return len(self.prompt)


def worst_case_blocks(prompt_len: int, max_tokens: int, rows: int, block_size: int) -> int:
    """Blocks that a group can hold at most at one time, if its rows came to share nothing but the
    full blocks of the prompt: ceil(P/S) + W * (ceil((max_tokens + P mod S) / S) + 1).
    """
    tail = -(-(max_tokens + prompt_len % block_size) // block_size)
    return -(-prompt_len // block_size) + rows * (tail + 1)


def check_capacity(
    request: DecodeRequest, rows: int, num_blocks: int, block_size: int, *, overcommit: bool
) -> None:
    """Raises CapacityError when the request could run out of blocks even alone in the pool; under
    `overcommit` only when it cannot even start."""
    if overcommit:
        needed = -(-request.prompt_len // block_size) + rows
        what = f"its prompt and the first step of {rows} candidates need {needed} blocks"
    else:
        needed = worst_case_blocks(request.prompt_len, request.options.max_tokens, rows, block_size)
        what = (
            f"{request.prompt_len} prompt tokens and {rows} candidates of up to "
            f"{request.options.max_tokens} tokens can need {needed} blocks of {block_size} tokens"
        )
    if needed > num_blocks:
        raise CapacityError(
            f"{what}, but the pool has {num_blocks}; ask for fewer tokens or candidates, or give the "
            "engine more kv_memory" + ("" if overcommit else " (overcommit admits it regardless)"),
            field="max_tokens",
            request_id=request.request_id,
        )
