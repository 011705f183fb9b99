"""What a kind of request asks of a device, and what it makes of the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode.sampling.device.values import Batch
from forkdecode.sampling.group_logits import where
from forkdecode.step import (
    I64,
    Draw,
    Gather,
    GumbelTopK,
    RowTopK,
    SelectionRequest,
    SelectionResult,
    TopK,
    TopLogprobs,
)
from forkdecode_kernels.calls import Call, Source

C = TypeVar("C", Draw, TopK, RowTopK, GumbelTopK, Gather)
Tops: TypeAlias = dict[int, TopLogprobs]
"""Of each group that asks for them."""


@dataclass(frozen=True, slots=True)
class Asked(Generic[C]):
    """Groups of one kind. rows [m]: which of the values each of their rows is. changed: values are no longer
    the logits as they came."""

    batch: Batch
    choices: Sequence[C]
    rows: I64
    vocab: int
    changed: bool

    @property
    def pairs(self) -> list[tuple[SelectionRequest, C]]:
        """Each request with its choice."""
        return list(zip(self.batch.requests, self.choices, strict=True))

    @property
    def sizes(self) -> list[int]:
        """Rows of each group."""
        return [r.rows for r in self.batch.requests]

    def of_rows(self, values: Sequence[Any]) -> NDArray[Any]:
        """One value a group -> one a row."""
        return np.repeat(np.array(values), self.sizes)


@dataclass(frozen=True, slots=True)
class Kind(Generic[C]):
    """begin: the call. log_softmax: of the values that it takes where they are changed. shown: the
    log-probabilities [m, V] whose likeliest tokens are told as those after processors, from what the call
    kept; None: the values. results: of what came of the call, from the same values."""

    begin: Callable[[Asked[C]], Call[Any]]
    log_softmax: bool
    shown: Callable[[Any], torch.Tensor | None] | None
    results: Callable[[Asked[C], Any, Tops, Source], list[SelectionResult]]


def not_finite(asked: Asked[Any], request: SelectionRequest) -> str:
    """For error texts."""
    return f"non-finite {'processed ' if asked.changed else ''}logits {where(request)}"
