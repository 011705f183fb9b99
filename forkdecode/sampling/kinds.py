"""What a kind of request is checked by, and how its groups are chosen for on a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from forkdecode.sampling.beams import topk_listed, topk_plain, topk_processed
from forkdecode.sampling.continuations import check_scores
from forkdecode.sampling.gather import check_gather, gather_named
from forkdecode.sampling.listed import draw_listed, perturbed_listed, rows_listed
from forkdecode.sampling.perturbed import check_gumbel, perturbed_best
from forkdecode.sampling.row_best import rows_plain, rows_processed
from forkdecode.sampling.sampler import check_draw, draw_plain, draw_processed
from forkdecode.step import (
    Choice,
    Draw,
    Gather,
    GumbelTopK,
    RowTopK,
    SelectionRequest,
    SelectionResult,
    TopK,
)

C = TypeVar("C", Draw, TopK, RowTopK, GumbelTopK, Gather)


@dataclass(frozen=True, slots=True)
class Kind(Generic[C]):
    """check: raises ValueError for what a group can't have. ways: for groups whose logits are read as they
    are, for the others, and perhaps for those of the others whose logits only lists of allowed tokens
    change."""

    check: Callable[[torch.Tensor, SelectionRequest, C], None]
    ways: tuple[Callable[..., list[SelectionResult]], ...]


KINDS: Mapping[type[Choice], Kind[Any]] = {
    Draw: Kind(check_draw, (draw_plain, draw_processed, draw_listed)),
    TopK: Kind(check_scores, (topk_plain, topk_processed, topk_listed)),
    RowTopK: Kind(check_scores, (rows_plain, rows_processed, rows_listed)),
    Gather: Kind(check_gather, (gather_named, gather_named)),
    GumbelTopK: Kind(check_gumbel, (perturbed_best, perturbed_best, perturbed_listed)),
}
"""In the order in which a step's groups are served."""
