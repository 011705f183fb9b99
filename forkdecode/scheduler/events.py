"""What a commit reports. Token ids and numbers only: text is made by whoever listens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from forkdecode.errors import ForkdecodeError
from forkdecode.results import FinishReason, TokenLogprob, Usage
from forkdecode.step import F32, I32, I64


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
class BeamStep:
    """The best live hypothesis after a step, and how many have finished so far."""

    request_id: str
    token_ids: I64
    score: float
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


@dataclass(frozen=True, slots=True)
class GroupFailed:
    """The group ended with `error`; `candidates` holds what had finished before."""

    request_id: str
    error: ForkdecodeError
    candidates: tuple[CandidateRecord, ...]
    usage: Usage


GroupEvent: TypeAlias = (
    GroupStarted | TokensAppended | CandidateEnded | BeamStep | GroupFinished | GroupFailed
)
