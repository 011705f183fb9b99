"""The two records that cross between scheduler and model: StepPlan and StepOutput.

Everything here is numpy and frozen. Shapes use the letters R rows, T query tokens, V vocabulary,
S block_size, N candidates, g generated tokens so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from forkdecode.allowed import AllowedSource
from forkdecode.choices import (
    F32,
    I32,
    I64,
    U64,
    Bools,
    Choice,
    Draw,
    FinishMask,
    Gather,
    GumbelTopK,
    RowTopK,
    TopK,
)

__all__ = [
    "F32",
    "I32",
    "I64",
    "U64",
    "BlockMoves",
    "Bools",
    "Choice",
    "DecodeRows",
    "DeviceLostError",
    "Draw",
    "FinishMask",
    "Gather",
    "GumbelTopK",
    "ProcessorSpec",
    "QuerySegment",
    "RowTopK",
    "SelectionRequest",
    "SelectionResult",
    "StepOutput",
    "StepPlan",
    "TopK",
    "TopLogprobs",
]


@dataclass(frozen=True, slots=True)
class QuerySegment:
    """Consecutive query tokens of one row: prefill, recompute, or several tokens that are known
    beforehand. Logits are computed of those in `logits_index` alone.

    The tokens `token_start .. token_start + token_count` of the step stand at positions
    `position ..` of their sequence; `blocks` [n] is the row's block table from position 0, long
    enough to cover the last of them.
    """

    token_start: int
    token_count: int
    position: int
    blocks: I32


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The R rows of one sequence group, one query token each, all at the same position.

    trunk [nt]: full blocks that every row shares, read once. tails [R, C]: the rest of each row's
    table. context_len counts the tokens each row attends to, the one written in this step included.
    """

    token_start: int
    trunk: I32
    tails: I32
    context_len: int

    @property
    def rows(self) -> int:
        return int(self.tails.shape[0])


@dataclass(frozen=True, slots=True)
class BlockMoves:
    """Pairs of block ids (source[i] -> target[i]), all layers."""

    source: I32
    target: I32

    def __len__(self) -> int:
        return len(self.source)

    @staticmethod
    def none() -> BlockMoves:
        return BlockMoves(np.empty(0, np.int32), np.empty(0, np.int32))

    @staticmethod
    def concat(moves: Sequence[BlockMoves]) -> BlockMoves:
        kept = [m for m in moves if len(m)]
        if not kept:
            return BlockMoves.none()
        if len(kept) == 1:
            return kept[0]
        return BlockMoves(np.concatenate([m.source for m in kept]), np.concatenate([m.target for m in kept]))


@dataclass(frozen=True, slots=True)
class ProcessorSpec:
    """What a request asks of its logits; constant over its life (see sampling/processors).

    Token sequences are tuples of ids. `allowed_token_ids`, `bias_ids` and `bias_values` are arrays.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: I64 | None = None
    bias_ids: I64 | None = None
    bias_values: F32 | None = None
    min_tokens: int = 0
    suppressed_ids: I64 | None = None
    """EOS and stop ids: masked while fewer than min_tokens tokens are generated."""
    forced_prefix: tuple[int, ...] = ()
    """Generated position i < len(forced_prefix) may only be forced_prefix[i]."""

    @property
    def reads_history(self) -> bool:
        """Whether any processor looks at the tokens before the current one."""
        return bool(
            self.repetition_penalty != 1.0
            or self.presence_penalty
            or self.frequency_penalty
            or self.no_repeat_ngram_size
            or any(len(word) > 1 for word in self.bad_words)
        )

    def active(self, generated: int) -> bool:
        """Whether any processor changes logits at generated position `generated`."""
        return bool(
            self.reads_history
            or self.bad_words
            or self.allowed_token_ids is not None
            or self.bias_ids is not None
            or (generated < self.min_tokens and self.suppressed_ids is not None)
            or generated < len(self.forced_prefix)
        )


@dataclass(frozen=True, slots=True)
class SelectionRequest:
    """What one group wants from its logits rows `logits_start .. logits_start + rows`.

    A group whose rows append several known tokens in a step has a request for each of them, in order.

    prompt [P] and generated [R, g] are the history; `generated` is None when no processor reads
    it. num_logprobs: None for none beyond the chosen tokens', else the top k of every source row.
    """

    group_id: int
    logits_start: int
    rows: int
    choice: Choice
    processors: ProcessorSpec
    prompt: I64
    generated: I64 | None
    num_generated: int
    num_logprobs: int | None = None
    allowed: AllowedSource | None = None
    """What a constraint lets each row continue with; None for anything."""


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """The most likely tokens of each source row, [R, k] each, best first, raw and processed."""

    raw_ids: I64
    raw: F32
    processed_ids: I64
    processed: F32


@dataclass(frozen=True, slots=True)
class SelectionResult:
    """N candidates: for Gather one per child in order, for Draw too, but none where nothing legal follows the
    child's row; for TopK the best first.

    rows [N]: the group's logits row each continues. logprobs [N]: raw log_softmax of the logits.
    selection_logprobs [N]: after processors (Draw: of the distribution drawn from; TopK: processed
    log_softmax, not renormalised; Gather: the raw ones again). scores [N]: base + selection_logprob
    for TopK, else zeros.
    error: why this group failed, in which case the arrays are empty; field: the option at fault, where one
    is. ended [N]: which candidates end because their constraint is complete; None for none.
    """

    group_id: int
    rows: I32
    tokens: I64
    logprobs: F32
    selection_logprobs: F32
    scores: F32
    top: TopLogprobs | None = None
    error: str | None = None
    ended: Bools | None = None
    field: str | None = None

    @staticmethod
    def failed(group_id: int, error: str, field: str | None = None) -> SelectionResult:
        none = np.empty(0, np.float32)
        return SelectionResult(
            group_id, np.empty(0, np.int32), np.empty(0, np.int64), none, none, none, None, error, field=field
        )


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step's work. Executed in this order: swap_out, zero_blocks, swap_in, copies; then in
    each layer first every K/V write, then attention; then logits of `logits_index`, selections.

    token_ids, positions, slots [T]: per query token; slot = block * S + offset. Segments and
    decode rows together cover all T tokens exactly once. logits_index [M]: the query tokens whose
    logits are wanted; selections name rows of it.
    """

    step: int
    token_ids: I64
    positions: I64
    slots: I64
    segments: tuple[QuerySegment, ...]
    decodes: tuple[DecodeRows, ...]
    logits_index: I64
    selections: tuple[SelectionRequest, ...]
    copies: BlockMoves = field(default_factory=BlockMoves.none)
    swap_out: BlockMoves = field(default_factory=BlockMoves.none)
    """source: device block, target: host slot."""
    swap_in: BlockMoves = field(default_factory=BlockMoves.none)
    """source: host slot, target: device block."""
    zero_blocks: I32 = field(default_factory=lambda: np.empty(0, np.int32))
    """Blocks whose last owner failed: cleared, so that no NaN outlives its group."""
    token_source: I64 | None = None
    """[T] Where the step before has not answered yet: the row of its logits_index whose draw each query token
    is. None where token_ids has them."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What the model answered, in the order of the plan's selections."""

    step: int
    results: tuple[SelectionResult, ...]
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds by part of the step, for profiles."""
    attention_bytes: int | None = None
    """What attention has read of keys and values in all layers, and moved besides for the sake of sharing;
    None where nobody counted."""


class DeviceLostError(Exception):
    """Raised by what executes plans when its device will do nothing any more. No group is at fault, and none
    can go on: the engine ends, and whoever keeps it starts another."""
