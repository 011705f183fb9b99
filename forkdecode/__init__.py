"""Beam search and parallel sampling over shared KV blocks.

Strategies, options, results and errors are here at once; LLM and AsyncLLM are imported when first
used, because they bring torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from forkdecode.config import DEFAULT_MODEL, EngineConfig
from forkdecode.errors import (
    AuthenticationError,
    CancelledError,
    CapacityError,
    DeadlineError,
    EngineClosedError,
    ForkdecodeError,
    GroupFailedError,
    InvalidRequestError,
    ModelLoadError,
    QueueFullError,
    UnavailableError,
)
from forkdecode.results import (
    BeamUpdate,
    Candidate,
    CandidateFinished,
    Committed,
    DecodeResult,
    Delta,
    Event,
    Finished,
    LiveBeam,
    ScoredContinuation,
    ScoreResult,
    Started,
    TokenLogprob,
    Usage,
)
from forkdecode.types import Beam, BestOf, Greedy, Options, Sample, Strategy

if TYPE_CHECKING:
    from forkdecode.llm import LLM, AsyncHandle, AsyncLLM, EventStream, Handle

# Read by OpenMP when torch is loaded. Its threads would otherwise spin between two products, on cores
# that others want to use, our own kernels' threads among them. What is set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_LAZY = ("LLM", "AsyncHandle", "AsyncLLM", "EventStream", "Handle")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from forkdecode import llm

        return getattr(llm, name)
    raise AttributeError(f"module 'forkdecode' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "DEFAULT_MODEL",
    "LLM",
    "AsyncHandle",
    "AsyncLLM",
    "AuthenticationError",
    "Beam",
    "BeamUpdate",
    "BestOf",
    "CancelledError",
    "Candidate",
    "CandidateFinished",
    "CapacityError",
    "Committed",
    "DeadlineError",
    "DecodeResult",
    "Delta",
    "EngineClosedError",
    "EngineConfig",
    "Event",
    "EventStream",
    "Finished",
    "ForkdecodeError",
    "Greedy",
    "GroupFailedError",
    "Handle",
    "InvalidRequestError",
    "LiveBeam",
    "ModelLoadError",
    "Options",
    "QueueFullError",
    "Sample",
    "ScoreResult",
    "ScoredContinuation",
    "Started",
    "Strategy",
    "TokenLogprob",
    "UnavailableError",
    "Usage",
]
