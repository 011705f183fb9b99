"""How candidates are made: the strategies that callers choose. All frozen, checked when built."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from forkdecode.checks import check_float, check_int, check_ints, keep, shown
from forkdecode.errors import invalid
from forkdecode.scorer_types import Contrastive, CustomScorer, HypothesisScorer

if TYPE_CHECKING:
    from forkdecode.results import Candidate

EarlyStopping: TypeAlias = Literal[True, False, "never"]
RankBy: TypeAlias = Literal["cumulative_logprob", "mean_logprob", "none"]
Scorer: TypeAlias = Callable[[Sequence["Candidate"]], Sequence[float]]
"""Takes one request's finished candidates, returns a score for each: higher is better."""

MAX_COUNT = 65_536
MAX_SEED = 2**64 - 1
FRESH_SEEDS = 2**53
"""A seed that nobody chose is below it, so that readers whose numbers are doubles (JSON's, JavaScript's) get
all of it."""


def _check_sampling(s: Sample | BestOf | StochasticBeam) -> None:
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
    """n independent samples of one prompt. They differ from each other, and repeat for a seed.

    temperature 0 means greedy decoding and requires n = 1. top_k 0, top_p 1, min_p 0 and typical_p 1 are off.
    seed None draws a fresh seed, which the result reports.
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
    """Draws best_of samples and returns the n best, ranked.

    rank_by: "cumulative_logprob", "mean_logprob" (per generated token), or a scorer: a callable on the
    finished candidates, run in the caller's thread; or "none": all that finish are returned in the order of
    samples, whatever n is, for the caller to rank. first_finished: stop as soon as this many candidates have
    finished, and rank only those.
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


def _check_ending(s: Beam | DiverseBeam) -> None:
    """What Beam and DiverseBeam have in common."""
    keep(s, "length_penalty", check_float, -100.0, 100.0)
    known = isinstance(s.early_stopping, (bool, str)) and s.early_stopping in (True, False, "never")
    if not known:
        raise invalid("early_stopping", f"{shown(s.early_stopping)} is unknown", "True, False or 'never'")
    if s.scorer is None:
        return
    if not isinstance(s.scorer, HypothesisScorer):
        allowed = "None, LengthNormalised(...), Contrastive(...) or CustomScorer(function, data)"
        raise invalid("scorer", f"{shown(s.scorer)} is not a scorer", allowed)
    if s.length_penalty != 1.0 and not isinstance(s.scorer, Contrastive):
        problem = f"{s.length_penalty:g} has no effect on the score of {type(s.scorer).__name__}"
        raise invalid("length_penalty", problem, "1 (its default), or another scorer")
    if s.early_stopping == "never" and isinstance(s.scorer, CustomScorer):
        problem = "'never' needs a bound on later scores, which a CustomScorer does not have"
        raise invalid("early_stopping", problem, "True or False")


@dataclass(frozen=True, slots=True)
class Beam:
    """Beam search as transformers' `generate` defines it.

    num_return_sequences None returns every hypothesis of the pool. score = selection_logprob / generated
    tokens ** length_penalty, or what `scorer` computes from the two. patience p != 1 (Kasai et al. 2022,
    "Beam decoding with controlled patience") makes the pool ceil(p * width) and requires early_stopping=True.

    widths: the width of each step; the last applies to all later steps and to the pool, and the largest must
    equal `width`. sibling_penalty: at each step, candidates are ordered by their sum of log-probabilities
    minus sibling_penalty times their rank, from 0, among all continuations of their own beam (Li, Monroe and
    Jurafsky 2016, "A simple, fast diverse decoding algorithm for neural generation", section 3). It affects
    only the order: sums and scores don't include it.
    """

    width: int = 4
    num_return_sequences: int | None = None
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    patience: float = 1.0
    widths: tuple[int, ...] = ()
    sibling_penalty: float = 0.0
    scorer: HypothesisScorer | None = None

    def __post_init__(self) -> None:
        keep(self, "width", check_int, 1, MAX_COUNT)
        _check_ending(self)
        keep(self, "patience", check_float, 0.0, 1e3, open_low=True)
        if self.patience != 1.0 and self.early_stopping is not True:
            raise invalid("patience", f"{self.patience:g} needs early_stopping=True", "1 without it")
        self._check_widths()
        keep(self, "sibling_penalty", check_float, 0.0, 1e4)
        if self.num_return_sequences is not None:
            keep(self, "num_return_sequences", check_int, 1, self.pool_size)

    def _check_widths(self) -> None:
        keep(self, "widths", check_ints, 1, self.width, MAX_COUNT)
        if self.widths and max(self.widths) != self.width:
            raise invalid(
                "widths",
                f"the largest is {max(self.widths)}, which is not width={self.width}",
                "widths whose largest is width",
            )

    @property
    def pool_size(self) -> int:
        """How many finished hypotheses are kept: ceil(patience * the last step's width)."""
        last = self.widths[-1] if self.widths else self.width
        return math.ceil(self.patience * last - 1e-9) or 1

    def width_at(self, step: int) -> int:
        """The width of the step, counted from 0, that chooses generated token `step`."""
        return self.widths[min(step, len(self.widths) - 1)] if self.widths else self.width


@dataclass(frozen=True, slots=True)
class DiverseBeam:
    """Diverse beam search: Vijayakumar et al. 2016, "Diverse beam search: decoding diverse solutions from
    neural sequence models", Algorithm 1, with Hamming diversity.

    `groups` groups of width / groups beams each take turns at each step. A group orders its candidates by
    their sum of log-probabilities minus diversity_penalty times the number of beams of earlier groups that
    have taken the same token in this step, whether they continue or end with it. The penalty affects only the
    order: sums and scores include neither it nor those of earlier steps. Apart from that, a group is a Beam
    of its own: it has its own pool of finished hypotheses and ends by itself under the early_stopping rule
    (transformers' rule, whatever its width); the request ends when all groups have. Two groups may arrive at
    the same sequence, and then both return it. One group is Beam(width).

    num_return_sequences None returns all hypotheses of all groups, best first; ties go to the earlier group.
    """

    width: int = 4
    groups: int = 2
    diversity_penalty: float = 0.5
    num_return_sequences: int | None = None
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    scorer: HypothesisScorer | None = None

    def __post_init__(self) -> None:
        keep(self, "width", check_int, 1, MAX_COUNT)
        keep(self, "groups", check_int, 1, self.width)
        if self.width % self.groups:
            raise invalid("groups", f"{self.groups} does not divide width={self.width}", "a divisor of width")
        keep(self, "diversity_penalty", check_float, 0.0, 1e4)
        if self.num_return_sequences is not None:
            keep(self, "num_return_sequences", check_int, 1, self.width)
        _check_ending(self)

    @property
    def pool_size(self) -> int:
        """How many finished hypotheses all groups together keep."""
        return self.width


@dataclass(frozen=True, slots=True)
class StochasticBeam:
    """`width` distinct sequences, sampled without replacement: stochastic beam search (Kool et al. 2019,
    "Stochastic beams and where to find them", algorithm 1).

    The distribution is that of Sample with the same settings. A candidate's score is its perturbed
    log-probability, which ranks it; selection_logprob is its log-probability under that distribution, and
    forkdecode.estimates computes unbiased estimates from the two. If there are fewer sequences than `width`,
    fewer come back. temperature must be above 0. seed None draws a fresh seed, which the result reports.
    """

    width: int = 4
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        keep(self, "width", check_int, 1, MAX_COUNT)
        _check_sampling(self)
        if self.temperature == 0.0:
            raise invalid("temperature", "0 leaves nothing to sample", "above 0 with StochasticBeam")


Strategy: TypeAlias = Greedy | Sample | BestOf | Beam | DiverseBeam | StochasticBeam
STRATEGY_NAMES = ", ".join(kind.__name__ for kind in get_args(Strategy))
"""For error texts."""
SEEDED = (Sample, BestOf, StochasticBeam)
"""Those that draw."""
BEAMS = (Beam, DiverseBeam, StochasticBeam)
"""Those whose rows are no candidates for good."""
