"""How candidates are made: the strategies that callers name. All frozen, checked when built."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from forkdecode.checks import check_float, check_int, keep, shown
from forkdecode.errors import invalid

if TYPE_CHECKING:
    from forkdecode.results import Candidate

EarlyStopping: TypeAlias = Literal[True, False, "never"]
RankBy: TypeAlias = Literal["cumulative_logprob", "mean_logprob", "none"]
Scorer: TypeAlias = Callable[[Sequence["Candidate"]], Sequence[float]]
"""Takes one request's finished candidates, returns a score for each: higher is better."""

MAX_COUNT = 65_536
MAX_SEED = 2**64 - 1


def _check_sampling(s: Sample | BestOf) -> None:
    keep(s, "temperature", check_float, 0.0, 1e4)
    keep(s, "top_k", check_int, 0)
    keep(s, "top_p", check_float, 0.0, 1.0, open_low=True)
    keep(s, "min_p", check_float, 0.0, 1.0)
    keep(s, "typical_p", check_float, 0.0, 1.0, open_low=True)
    if s.seed is not None:
        keep(s, "seed", check_int, 0, MAX_SEED)


@dataclass(frozen=True, slots=True)
class Greedy:
    """The most likely token at each step; ties to the lower token id."""


@dataclass(frozen=True, slots=True)
class Sample:
    """n independent samples of one prompt. They differ from each other and repeat for a seed.

    temperature 0 is greedy and needs n = 1; top_k 0, top_p 1, min_p 0 and typical_p 1 are off.
    seed None takes a fresh one, reported in the result.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        keep(self, "n", check_int, 1, MAX_COUNT)
        _check_sampling(self)
        if self.temperature == 0.0 and self.n > 1:
            raise invalid("temperature", f"0 would make all n={self.n} samples equal", "above 0 with n > 1")


@dataclass(frozen=True, slots=True)
class BestOf:
    """Draw best_of samples and return the n best, ranked.

    rank_by: "cumulative_logprob", "mean_logprob" (per generated token), or a scorer: a callable
    on the finished candidates, run in the caller's thread; or "none": all that finish are returned,
    whatever n is, in the order of samples, for the caller to rank. first_finished: stop as soon as
    that many candidates have finished, and rank those alone.
    """

    best_of: int = 8
    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int | None = None
    rank_by: RankBy | Scorer = "cumulative_logprob"
    first_finished: int | None = None

    def __post_init__(self) -> None:
        keep(self, "best_of", check_int, 1, MAX_COUNT)
        keep(self, "n", check_int, 1, self.best_of)
        _check_sampling(self)
        if self.temperature == 0.0 and self.best_of > 1:
            raise invalid(
                "temperature", f"0 would make all {self.best_of} samples equal", "above 0 with best_of > 1"
            )
        named = isinstance(self.rank_by, str) and self.rank_by in get_args(RankBy)
        if not named and not callable(self.rank_by):
            raise invalid(
                "rank_by",
                f"{shown(self.rank_by)} is unknown",
                "'cumulative_logprob', 'mean_logprob', 'none' or a callable on candidates",
            )
        if self.first_finished is not None:
            keep(self, "first_finished", check_int, self.n, self.best_of)


@dataclass(frozen=True, slots=True)
class Beam:
    """Beam search as transformers' `generate` defines it.

    num_return_sequences None returns every hypothesis of the pool. score = selection_logprob /
    generated tokens ** length_penalty. patience p != 1 (Kasai et al. 2022, "Beam decoding with
    controlled patience") makes the pool ceil(p * width) and needs early_stopping=True.
    """

    width: int = 4
    num_return_sequences: int | None = None
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    patience: float = 1.0

    def __post_init__(self) -> None:
        keep(self, "width", check_int, 1, MAX_COUNT)
        keep(self, "length_penalty", check_float, -100.0, 100.0)
        known = isinstance(self.early_stopping, (bool, str)) and self.early_stopping in (True, False, "never")
        if not known:
            raise invalid(
                "early_stopping", f"{shown(self.early_stopping)} is unknown", "True, False or 'never'"
            )
        keep(self, "patience", check_float, 0.0, 1e3, open_low=True)
        if self.patience != 1.0 and self.early_stopping is not True:
            raise invalid("patience", f"{self.patience:g} needs early_stopping=True", "1 otherwise")
        if self.num_return_sequences is not None:
            keep(self, "num_return_sequences", check_int, 1, self.pool_size)

    @property
    def pool_size(self) -> int:
        """How many finished hypotheses are kept: ceil(patience * width)."""
        return math.ceil(self.patience * self.width - 1e-9) or 1


Strategy: TypeAlias = Greedy | Sample | BestOf | Beam
