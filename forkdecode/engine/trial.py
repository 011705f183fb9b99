"""What a GPU is found to need and to do before anything is served: memory of a step beside the cache, and how
fast it computes prompts and moves blocks to the host."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from forkdecode.errors import CapacityError
from forkdecode.model.device import lacks_memory
from forkdecode.model.graphed import MAX_GRAPH_TOKENS
from forkdecode.model.info import ModelInfo
from forkdecode.model.runner import Runner
from forkdecode.model.trial_steps import TrialSteps
from forkdecode.step import BlockMoves, StepPlan

TRIAL_BLOCKS = 64
"""Of the cache that a trial step runs over, before it is known how large the real one can be."""
USUAL_FLOPS_PER_BYTE = 15_000.0
"""Of a GPU behind a PCIe 5 link: 400 TFLOP/s over 25 GB/s."""
_PACE_TOKENS = 512
_MOVED_BYTES = 64 * 1024 * 1024
_REPEATS = 3


def step_bytes(runner: Runner, info: ModelInfo, step_tokens: int) -> int:
    """Memory that a GPU needs for activations: of the largest step, and again of the largest whose graph is
    captured, since that memory is the graphs' own. runner: a fresh one. Raises CapacityError where a step
    does not fit."""
    device = runner.device
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try:
        runner.execute(_steps(runner, info).prompts(step_tokens))
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        raise CapacityError(
            f"max_step_tokens: {device} has no memory for a step of {step_tokens:,} tokens beside the model; "
            "allowed: fewer",
            field="max_step_tokens",
        ) from error
    largest = int(torch.cuda.max_memory_allocated(device)) - before
    return largest + largest * min(step_tokens, MAX_GRAPH_TOKENS) // step_tokens


def flops_per_byte(
    runner: Runner,
    info: ModelInfo,
    block_bytes: int,
    step_tokens: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """FLOPs of prompts that are computed in the time that a byte of the cache takes to the host, or back. For
    an empty cache, which stays so."""
    cache, tokens = runner.cache, min(step_tokens, _PACE_TOKENS)
    count = min(cache.num_blocks, cache.host_slots, max(1, _MOVED_BYTES // block_bytes))
    if not count:
        return USUAL_FLOPS_PER_BYTE
    ids, none = np.arange(count, dtype=np.int32), np.empty(0, np.int64)
    moves, nothing = BlockMoves(ids, ids), BlockMoves.none()
    there = StepPlan(0, none, none, none, (), (), none, (), nothing, moves)
    back = StepPlan(0, none, none, none, (), (), none, (), nothing, nothing, moves)
    computing = _seconds(runner, [_steps(runner, info).prompts(tokens)], clock)
    moving = _seconds(runner, [there, back], clock)
    return (2.0 * info.num_weights * tokens / computing) * (moving / (2.0 * count * block_bytes))


def _steps(runner: Runner, info: ModelInfo) -> TrialSteps:
    cache = runner.cache
    return TrialSteps(cache.block_size, cache.num_blocks, info.max_positions, info.vocab_size)


def _seconds(runner: Runner, plans: list[StepPlan], clock: Callable[[], float]) -> float:
    """Of the quickest of several runs."""
    best = float("inf")
    for _ in range(_REPEATS):
        began = clock()
        for plan in plans:
            runner.execute(plan)
        if runner.device.type == "cuda":
            torch.cuda.synchronize(runner.device)
        best = min(best, clock() - began)
    return max(best, 1e-9)
