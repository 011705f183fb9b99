"""What callers receive: results, and the events of a running request. All frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from forkdecode.types import Strategy

FinishReason: TypeAlias = Literal["eos", "stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One generated token: its id, raw and processed log-probability, and the step's top k by each."""

    token_id: int
    logprob: float
    selection_logprob: float
    top: tuple[tuple[int, float], ...] = ()
    top_processed: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """One finished candidate. index: the index of the sample, or the rank of a beam's hypothesis.

    token_ids: the generated tokens, including the EOS or stop token; text contains neither.
    cumulative_logprob: the sum of the model's own log-probabilities, from its unmodified logits.
    selection_logprob: the same sum under what the tokens were chosen from: after penalties, masks and bias,
    and for samples after temperature and filters. score: the value by which candidates are ranked. item: the
    key of the catalogue item that it has completed, if its constraint is a catalogue.
    """

    index: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    cumulative_logprob: float
    selection_logprob: float
    score: float
    logprobs: tuple[TokenLogprob, ...] | None = None
    item: str | None = None

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability per generated token; 0 if there are none."""
        return self.cumulative_logprob / max(len(self.token_ids), 1)


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources used by one request. Times are in seconds; blocks are of the engine's block size.

    unshared_block_steps and unique_block_steps are sums over steps: the paper's saving is 1 - unique /
    unshared, averaged over time.
    """

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    peak_unshared_blocks: int
    peak_unique_blocks: int
    unshared_block_steps: int
    unique_block_steps: int
    copies: int
    preemptions: int
    recomputed_tokens: int
    swapped_blocks: int
    steps: int
    queue_time: float
    time_to_first_token: float
    time_per_token: float
    total_time: float

    @property
    def saved(self) -> float:
        """Fraction of KV blocks saved by sharing, averaged over time (PagedAttention paper, 6.3)."""
        return 1 - self.unique_block_steps / self.unshared_block_steps if self.unshared_block_steps else 0.0


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """A finished request: its candidates (best first if the strategy ranks them) and its usage.

    exhausted: there are fewer candidates than requested, because the constraint or the other options allow no
    more.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    strategy: Strategy
    seed: int | None
    candidates: tuple[Candidate, ...]
    usage: Usage
    exhausted: bool = False

    @property
    def text(self) -> str:
        """The first candidate's text."""
        return self.candidates[0].text


@dataclass(frozen=True, slots=True)
class ScoredContinuation:
    """One continuation and its log-probabilities: one record per token; cumulative_logprob is their sum."""

    index: int
    token_ids: tuple[int, ...]
    text: str
    cumulative_logprob: float
    logprobs: tuple[TokenLogprob, ...]

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability per token."""
        return self.cumulative_logprob / len(self.token_ids)


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """The continuations of one prompt, in the order in which they were given."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    continuations: tuple[ScoredContinuation, ...]
    usage: Usage


BATCH_ROW_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Of EngineStats.steps_by_rows."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot between two steps. Sums count from the start of the engine.

    shared_blocks: held more than once. cached_blocks: held only by the prefix cache, and free to take. saved:
    1 - unique / unshared blocks over all steps and groups. waste: fraction of the slots in the groups' unique
    blocks that held no token, over all steps (the unused ends of last blocks). decoded_rows: sum over steps
    of the rows that decoded. steps_by_rows: how many steps decoded up to BATCH_ROW_BOUNDS[i] rows and more
    than the previous bound; the last entry has no upper bound. held_nodes: tree nodes that hold KV, or did
    until it was dropped. held_blocks: blocks of the pool that only nodes hold. swapped_nodes, dropped_nodes:
    how often a node's KV was moved to host memory or dropped to make room. rebuilt_tokens: tokens recomputed
    because it was dropped. forest_kv_bytes: keys and values that attention has read, summed over steps and
    layers, and on a GPU the partial results that it has written and read because of sharing. paged_kv_bytes:
    what it would have read if every row read its own context. naive_kv_bytes: the same if every row also held
    its own, and beams were copied when they are reordered. See docs/operations.md. These are floats, because
    they exceed 2**64 within hours on a large GPU.
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
    decoded_rows: int = 0
    steps_by_rows: tuple[int, ...] = ()
    held_nodes: int = 0
    held_blocks: int = 0
    swapped_nodes: int = 0
    dropped_nodes: int = 0
    rebuilt_tokens: int = 0
    naive_kv_bytes: float = 0.0
    paged_kv_bytes: float = 0.0
    forest_kv_bytes: float = 0.0

    @property
    def read_gain(self) -> float:
        """Bytes that rows without sharing would have read, per byte that attention has moved."""
        return self.paged_kv_bytes / self.forest_kv_bytes if self.forest_kv_bytes else 1.0

    @property
    def saved(self) -> float:
        return 1 - self.unique_block_steps / self.unshared_block_steps if self.unshared_block_steps else 0.0

    @property
    def waste(self) -> float:
        slots = self.unique_block_steps * self.block_size
        return self.wasted_slot_steps / slots if slots else 0.0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that a server serves, and the server's limits.

    dtype: of weights and KV cache, "float32", "bfloat16" or "float16". max_positions: prompt and generated
    tokens together. The pool holds block_size * num_blocks tokens. version: the server's version of
    forkdecode. max_request_bytes: the largest request, as it is sent. catalogues: the names that constraints
    may use.
    """

    name: str
    dtype: str
    vocab_size: int
    max_positions: int
    eos_ids: tuple[int, ...]
    block_size: int
    num_blocks: int
    has_chat_template: bool
    has_tokenizer: bool
    version: str
    max_request_bytes: int
    catalogues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt's first step has run."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens of one candidate, and the text that has become certain with them."""

    request_id: str
    candidate: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """The next tokens shared by all candidates that a beam can still return, and the text that has become
    certain with them. Final: nothing of it is ever taken back."""

    request_id: str
    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class LiveBeam:
    """One live hypothesis. token_ids and text follow everything committed. parent_id: the hypothesis of the
    last update that it continues; 0 if that update did not show it or there was none. score: the score it
    would have if it ended now."""

    hypothesis_id: int
    parent_id: int
    token_ids: tuple[int, ...]
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class BeamUpdate:
    """The best live hypotheses of a beam after a step, best first: provisional, fully replaced by the next
    update. generated_tokens: the length of each, including committed tokens. finished: the number of
    hypotheses in the pool."""

    request_id: str
    generated_tokens: int
    beams: tuple[LiveBeam, ...]
    finished: int


@dataclass(frozen=True, slots=True)
class CandidateFinished:
    """One sample ended; its text is complete."""

    request_id: str
    candidate: int
    finish_reason: FinishReason
    cumulative_logprob: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The request is done."""

    request_id: str
    result: DecodeResult


Event: TypeAlias = Started | Delta | Committed | BeamUpdate | CandidateFinished | Finished
