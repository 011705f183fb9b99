"""Scorers that can rank the hypotheses of a beam. All frozen, checked when built.

Their arithmetic is in strategies/scoring.
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
    """score = (selection_logprob - weight * baseline[g - 1]) / g ** length_penalty, for g generated tokens.

    baseline: cumulative log-probabilities by length of what candidates are compared with: another model's
    text, or that of an unconditional prompt. Its last entry applies to all longer lengths.
    """

    baseline: tuple[float, ...]
    weight: float = 1.0

    def __post_init__(self) -> None:
        keep(self, "baseline", check_floats, -1e6, 1e6, MAX_BASELINE)
        keep(self, "weight", check_float, -1e4, 1e4)


@dataclass(frozen=True, slots=True)
class CustomScorer:
    """score = function(selection_logprob, length, data): takes a float64 array [N] of summed
    log-probabilities and returns a finite number for each; all N hypotheses have `length` generated tokens.

    It must be pure and fast: the engine calls it between two steps, and all that it runs waits; calls of the
    same LLM raise UnavailableError in it. In process only. If it raises, or returns a wrong shape, only its
    own request fails, with an error that names `scorer`.
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
