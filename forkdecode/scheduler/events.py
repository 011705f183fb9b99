"""What a commit reports. Token ids and numbers only: text is made by whoever listens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from forkdecode.errors import ForkdecodeError
from forkdecode.results import FinishReason, TokenLogprob, Usage
from forkdecode.step import F32, I32, I64
from forkdecode.strategies.hypotheses import F64


@dataclass(frozen=True, slots=True)
class GroupStarted:
    request_id: str
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class TokensAppended:
    """One token for each of N candidates of a sampling group, in one step. top: for each of them
    the step's top log-probabilities (raw, processed), when asked for."""

    request_id: str
    candidates: I32
    token_ids: I64
    logprobs: F32
    selection_logprobs: F32
    top: tuple[tuple[TopPairs, TopPairs], ...] | None


TopPairs: TypeAlias = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class CandidateEnded:
    request_id: str
    candidate: int
    finish_reason: FinishReason
    cumulative_logprob: float


@dataclass(frozen=True, slots=True)
class CandidateStuck:
    """Nothing legal follows a sample, while others go on or have finished: it ends where it is, and is no
    candidate of the group's. error: what it would have failed by, had it been alone."""

    request_id: str
    candidate: int
    cumulative_logprob: float
    error: ForkdecodeError


@dataclass(frozen=True, slots=True)
class TokensCommitted:
    """The next tokens that all candidates which a beam can still return begin with: final."""

    request_id: str
    token_ids: I64


@dataclass(frozen=True, slots=True)
class BeamStep:
    """The N best live hypotheses after a step, best first, and how many have finished so far.

    generated: tokens of each of them, committed ones included. hypotheses [N]: their numbers, of no
    other in the request. parents [N]: the numbers of those in the BeamStep before that they continue,
    0 for none. token_ids [N, rest]: their tokens after all that is committed. scores [N].
    """

    request_id: str
    generated: int
    hypotheses: I64
    parents: I64
    token_ids: I64
    scores: F64
    finished: int


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """A finished candidate without its text. logprobs: None unless asked for."""

    index: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    cumulative_logprob: float
    selection_logprob: float
    score: float
    logprobs: tuple[TokenLogprob, ...] | None


@dataclass(frozen=True, slots=True)
class GroupFinished:
    request_id: str
    candidates: tuple[CandidateRecord, ...]
    usage: Usage
    exhausted: bool = False
    """Whether candidates are fewer than were asked for because nothing legal was left."""


@dataclass(frozen=True, slots=True)
class GroupFailed:
    """The group ended with `error`; `candidates` holds what had finished before. kept: those whose KV nodes
    have from now on (see DecodeRequest.keep), by index; behind an engine process all that is told of them."""

    request_id: str
    error: ForkdecodeError
    candidates: tuple[CandidateRecord, ...]
    usage: Usage
    kept: tuple[int, ...] = ()


GroupEvent: TypeAlias = (
    GroupStarted
    | TokensAppended
    | CandidateEnded
    | CandidateStuck
    | TokensCommitted
    | BeamStep
    | GroupFinished
    | GroupFailed
)
