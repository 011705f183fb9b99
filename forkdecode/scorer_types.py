"""What a beam's hypotheses can be ranked by: scorers that callers name. All frozen, checked when built.

Their arithmetic is strategies/scoring's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from forkdecode.checks import check_float, check_floats, keep, shown
from forkdecode.errors import invalid

MAX_BASELINE = 65_536


@dataclass(frozen=True, slots=True)
class LengthNormalised:
    """score = selection_logprob / ((5 + generated tokens) / 6) ** alpha: Wu et al. 2016, "Google's neural
    machine translation system", equation 14, without its coverage penalty."""

    alpha: float = 0.6

    def __post_init__(self) -> None:
        keep(self, "alpha", check_float, -100.0, 100.0)


@dataclass(frozen=True, slots=True)
class Contrastive:
    """score = (selection_logprob - weight * baseline[g - 1]) / g ** length_penalty, of g generated tokens.

    baseline: cumulative log-probabilities by length, of what candidates are held against: another model's
    text, an unconditional prompt's; its last entry stands for all longer ones too.
    """

    baseline: tuple[float, ...]
    weight: float = 1.0

    def __post_init__(self) -> None:
        keep(self, "baseline", check_floats, -1e6, 1e6, MAX_BASELINE)
        keep(self, "weight", check_float, -1e4, 1e4)


@dataclass(frozen=True, slots=True)
class CustomScorer:
    """score = function(selection_logprob, length, data): float64 [N] sums of log-probabilities in, a finite
    number for each out; all N hypotheses have `length` generated tokens.

    It must be a pure function and quick: the engine calls it between two steps. In process only. What it
    raises, or a wrong answer, fails its request alone, by the name of `scorer`.
    """

    function: Callable[[Any, int, Any], Any]
    data: object = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise invalid(
                "scorer", f"{shown(self.function)} is not callable", "a function of (sums, length, data)"
            )


HypothesisScorer: TypeAlias = LengthNormalised | Contrastive | CustomScorer
"""What a beam's hypotheses are ranked by, instead of selection_logprob / length ** length_penalty."""
