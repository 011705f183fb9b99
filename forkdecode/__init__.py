"""Beam search and parallel sampling over shared KV blocks.

Importing forkdecode is cheap: torch is loaded only when `LLM` or `AsyncLLM` is first used, gRPC only with
`Client` or `AsyncClient`.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from forkdecode.config import DEFAULT_MODEL, DType, EngineConfig, EngineKeywords
from forkdecode.constraint_types import ConstraintSpec, FromCatalogue, JsonSchema, Lark, Regex
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
    FinishReason,
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
    Continuation,
    Contrastive,
    CustomScorer,
    DiverseBeam,
    Greedy,
    HypothesisScorer,
    LengthNormalised,
    Message,
    OptionKeywords,
    Options,
    PrefixFunction,
    Prompt,
    Sample,
    StochasticBeam,
    Strategy,
)

if TYPE_CHECKING:
    from forkdecode.calls.handle import AsyncHandle, EventStream, Handle
    from forkdecode.calls.tree import AsyncTree, Node, NodeStream, Tree
    from forkdecode.calls.tree.verbs import Nodes
    from forkdecode.client import AsyncClient, Client, Tls
    from forkdecode.constraints.catalogue import Catalogue
    from forkdecode.constraints.catalogue_build import build_catalogue
    from forkdecode.constraints.catalogue_file import open_catalogue, save_catalogue
    from forkdecode.constraints.catalogues import Catalogues
    from forkdecode.engine.sizing import Capacity
    from forkdecode.llm import LLM, AsyncLLM
    from forkdecode.model.info import ModelInfo

    __version__: str

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
    "Nodes": "forkdecode.calls.tree.verbs",
    "Capacity": "forkdecode.engine.sizing",
    "ModelInfo": "forkdecode.model.info",
    "Catalogue": "forkdecode.constraints.catalogue",
    "Catalogues": "forkdecode.constraints.catalogues",
    "build_catalogue": "forkdecode.constraints.catalogue_build",
    "open_catalogue": "forkdecode.constraints.catalogue_file",
    "save_catalogue": "forkdecode.constraints.catalogue_file",
}
"""Where each name is that is imported when first used."""


if not TYPE_CHECKING:  # which would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name in _LAZY:
            return getattr(importlib.import_module(_LAZY[name]), name)
        if name == "__version__":
            return importlib.import_module("importlib.metadata").version("forkdecode")
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
    "Capacity",
    "CapacityError",
    "Catalogue",
    "Catalogues",
    "Client",
    "Committed",
    "ConstraintSpec",
    "Continuation",
    "Contrastive",
    "CustomScorer",
    "DType",
    "DeadlineError",
    "DecodeResult",
    "Delta",
    "DiverseBeam",
    "EngineClosedError",
    "EngineConfig",
    "EngineKeywords",
    "EngineStats",
    "Event",
    "EventStream",
    "FinishReason",
    "Finished",
    "ForkdecodeError",
    "FromCatalogue",
    "Greedy",
    "GroupFailedError",
    "Handle",
    "HypothesisScorer",
    "InvalidRequestError",
    "JsonSchema",
    "Lark",
    "LengthNormalised",
    "LiveBeam",
    "Message",
    "ModelInfo",
    "ModelLoadError",
    "NoLegalTokenError",
    "Node",
    "NodeDelta",
    "NodePath",
    "NodeStopped",
    "NodeStream",
    "Nodes",
    "OptionKeywords",
    "Options",
    "PrefixFunction",
    "Prompt",
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
