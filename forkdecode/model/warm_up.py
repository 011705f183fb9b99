"""The first steps of a model, and the graphs that are captured before any request comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch

from forkdecode.model.attention import AttentionPlans, StepAttention
from forkdecode.model.device import give_back, lacks_memory
from forkdecode.model.graphed import GraphedDecoder, sizes
from forkdecode.model.info import ModelInfo
from forkdecode.model.kv_cache import KvCache
from forkdecode.model.prepared import PreparedModel
from forkdecode.model.step_shape import StepShape
from forkdecode.model.trial_steps import TrialSteps
from forkdecode.step import BlockMoves, DecodeRows, QuerySegment, StepPlan


@torch.inference_mode()
def first_steps(
    model: PreparedModel,
    cache: KvCache,
    plans: Callable[[StepShape], AttentionPlans],
    windows: tuple[int | None, ...],
) -> None:
    """Runs the model, so that its kernels are compiled. The cache stays as it was."""
    none, null_table = np.empty(0, np.int32), np.full((2, 1), cache.null_block, np.int32)
    device = cache.layer(0).device
    # A prompt's token and two rows of context 1, which read the null block; nothing is written to it. The
    # rows alone as well: the lean decoder has a way of its own for them.
    segment = QuerySegment(0, 1, 0, null_table[0])
    slots = torch.full((0 if device.type == "cpu" else 2,), -1, dtype=torch.int64).to(device)
    cache.copy(BlockMoves(null_table[0], null_table[0]))  # zeros onto themselves
    for segments in ((segment,), ()):
        size = len(segments) + 2
        ids = torch.zeros(size + -size % model.row_quantum, dtype=torch.int64).to(device)
        rows = DecodeRows(len(segments), none, null_table, 1)
        step = StepAttention(cache, plans(StepShape(segments, (rows,), len(ids))), slots, windows)
        model.head(model.decoder(ids, ids, step), ids[:1])


@torch.inference_mode()
def capture(
    graphed: GraphedDecoder,
    cache: KvCache,
    info: ModelInfo,
    step_tokens: int,
    forward: Callable[[StepPlan], object],
) -> None:
    """Captures the graphs of steps of up to step_tokens tokens. forward: runs a step without a graph of its
    own."""
    steps = TrialSteps(cache.block_size, cache.num_blocks, info.max_positions, info.vocab_size)
    forward(steps.prompt())
    _captured(graphed, (pair for size in sizes(step_tokens) for pair in steps.pairs(size)))
    cache.zero(steps.blocks)


def _captured(graphed: GraphedDecoder, pairs: Iterable[tuple[StepPlan, StepPlan]]) -> None:
    """An engine that lacks the memory for its graphs serves without them."""
    try:
        graphed.warm_up(pairs)
        return
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
    graphed.make_room()  # not before, for what was raised holds a step's tensors
    give_back()
