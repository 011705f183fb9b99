"""Beam search and parallel sampling over shared KV blocks.

Strategies, options, results and errors are here at once; LLM and AsyncLLM are imported when first
used, because they bring torch. Client and AsyncClient are too, for gRPC, and need none of it.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from forkdecode.config import DEFAULT_MODEL, EngineConfig
from forkdecode.constraint_types import FromCatalogue, JsonSchema, Lark, Regex
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
    NoLegalTokenError,
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
    EngineStats,
    Event,
    Finished,
    LiveBeam,
    ScoredContinuation,
    ScoreResult,
    ServedModel,
    Started,
    TokenLogprob,
    Usage,
)
from forkdecode.tree_types import NodeDelta, NodePath, NodeStopped, TreeLimits
from forkdecode.types import (
    Beam,
    BestOf,
    Contrastive,
    CustomScorer,
    DiverseBeam,
    Greedy,
    LengthNormalised,
    Options,
    Sample,
    StochasticBeam,
    Strategy,
)

if TYPE_CHECKING:
    from forkdecode.calls.handle import AsyncHandle, EventStream, Handle
    from forkdecode.calls.tree import AsyncTree, Node, NodeStream, Tree
    from forkdecode.client import AsyncClient, Client, Tls
    from forkdecode.constraints.catalogue import Catalogue
    from forkdecode.constraints.catalogue_build import build_catalogue
    from forkdecode.constraints.catalogue_file import open_catalogue, save_catalogue
    from forkdecode.constraints.catalogues import Catalogues
    from forkdecode.llm import LLM, AsyncLLM

# Read by OpenMP when torch is loaded. Its threads would otherwise spin between two products, on cores
# that others want to use, our own kernels' threads among them. What is set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_LAZY = {
    "LLM": "forkdecode.llm",
    "AsyncLLM": "forkdecode.llm",
    "Client": "forkdecode.client",
    "AsyncClient": "forkdecode.client",
    "Tls": "forkdecode.client",
    "Handle": "forkdecode.calls.handle",
    "AsyncHandle": "forkdecode.calls.handle",
    "EventStream": "forkdecode.calls.handle",
    "Tree": "forkdecode.calls.tree",
    "AsyncTree": "forkdecode.calls.tree",
    "Node": "forkdecode.calls.tree",
    "NodeStream": "forkdecode.calls.tree",
    "Catalogue": "forkdecode.constraints.catalogue",
    "Catalogues": "forkdecode.constraints.catalogues",
    "build_catalogue": "forkdecode.constraints.catalogue_build",
    "open_catalogue": "forkdecode.constraints.catalogue_file",
    "save_catalogue": "forkdecode.constraints.catalogue_file",
}
"""Where each name is that is imported when first used."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'forkdecode' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "DEFAULT_MODEL",
    "LLM",
    "AsyncClient",
    "AsyncHandle",
    "AsyncLLM",
    "AsyncTree",
    "AuthenticationError",
    "Beam",
    "BeamUpdate",
    "BestOf",
    "CancelledError",
    "Candidate",
    "CandidateFinished",
    "CapacityError",
    "Catalogue",
    "Catalogues",
    "Client",
    "Committed",
    "Contrastive",
    "CustomScorer",
    "DeadlineError",
    "DecodeResult",
    "Delta",
    "DiverseBeam",
    "EngineClosedError",
    "EngineConfig",
    "EngineStats",
    "Event",
    "EventStream",
    "Finished",
    "ForkdecodeError",
    "FromCatalogue",
    "Greedy",
    "GroupFailedError",
    "Handle",
    "InvalidRequestError",
    "JsonSchema",
    "Lark",
    "LengthNormalised",
    "LiveBeam",
    "ModelLoadError",
    "NoLegalTokenError",
    "Node",
    "NodeDelta",
    "NodePath",
    "NodeStopped",
    "NodeStream",
    "Options",
    "QueueFullError",
    "Regex",
    "Sample",
    "ScoreResult",
    "ScoredContinuation",
    "ServedModel",
    "Started",
    "StochasticBeam",
    "Strategy",
    "Tls",
    "TokenLogprob",
    "Tree",
    "TreeLimits",
    "UnavailableError",
    "Usage",
    "build_catalogue",
    "open_catalogue",
    "save_catalogue",
]
