"""What a beam's hypotheses score, and what live rows may come to score: one object a request."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from forkdecode.checks import shown, told
from forkdecode.errors import GroupFailedError
from forkdecode.step import F32
from forkdecode.strategies.hypotheses import F64
from forkdecode.strategies.scoring import beam_score, contrastive_score, length_normalised_score
from forkdecode.types import Beam, Contrastive, CustomScorer, DiverseBeam, LengthNormalised


class Scores(Protocol):
    """A pure function of the sum of log-probabilities and the generated length."""

    def of(self, selection: F32, generated: int) -> F64:
        """[N] scores of hypotheses of `generated` tokens."""

    def hope(self, selection: np.float32, generated: int, max_tokens: int) -> float:
        """The best score that a row of this sum, `generated` tokens long, or what follows it can have if
        its further tokens cost nothing."""


def make_scores(strategy: Beam | DiverseBeam) -> Scores:
    """By the strategy's scorer and length_penalty."""
    scorer = strategy.scorer
    if isinstance(scorer, LengthNormalised):
        return _LengthNormalisedScores(scorer.alpha)
    if isinstance(scorer, Contrastive):
        return _ContrastiveScores(scorer, strategy.length_penalty)
    if isinstance(scorer, CustomScorer):
        return _CustomScores(scorer)
    return _PenalisedScores(strategy.length_penalty)


class _PenalisedScores:
    """selection / generated ** length_penalty, as transformers has it."""

    def __init__(self, length_penalty: float) -> None:
        self._penalty = length_penalty

    def of(self, selection: F32, generated: int) -> F64:
        return beam_score(selection, generated, self._penalty).astype(np.float64)

    def hope(self, selection: np.float32, generated: int, max_tokens: int) -> float:
        """With a positive penalty that of the greatest length, as in transformers."""
        length = max_tokens if self._penalty > 0.0 else generated
        return float(beam_score(np.array([selection], np.float32), length, self._penalty)[0])


class _LengthNormalisedScores:
    def __init__(self, alpha: float) -> None:
        self._alpha = alpha

    def of(self, selection: F32, generated: int) -> F64:
        return length_normalised_score(selection, generated, self._alpha)

    def hope(self, selection: np.float32, generated: int, max_tokens: int) -> float:
        """The scale is monotone, so one of the two ends is best, whatever the signs."""
        ends = np.array([generated, max_tokens])
        return float(length_normalised_score(np.float32(selection), ends, self._alpha).max())


class _ContrastiveScores:
    def __init__(self, scorer: Contrastive, length_penalty: float) -> None:
        self._baseline = np.array(scorer.baseline, np.float64)
        self._weight = scorer.weight
        self._penalty = length_penalty

    def of(self, selection: F32, generated: int) -> F64:
        return contrastive_score(selection, generated, self._baseline, self._weight, self._penalty)

    def hope(self, selection: np.float32, generated: int, max_tokens: int) -> float:
        """Of all lengths to come: a baseline may fall by any amount at any of them."""
        lengths = np.arange(generated, max(generated, max_tokens) + 1)
        scores = contrastive_score(
            np.float32(selection), lengths, self._baseline, self._weight, self._penalty
        )
        return float(scores.max())


class _CustomScores:
    """Raises GroupFailedError, with field "scorer", for whatever goes wrong in the caller's function."""

    def __init__(self, scorer: CustomScorer) -> None:
        self._scorer = scorer

    def of(self, selection: F32, generated: int) -> F64:
        sums = selection.astype(np.float64)
        try:
            answer = self._scorer.function(sums, generated, self._scorer.data)
        except BaseException as error:  # a caller's function may raise anything, sys.exit() too
            raise GroupFailedError(f"scorer: the function failed: {told(error)}", field="scorer") from error
        return _checked(answer, len(selection))

    def hope(self, selection: np.float32, generated: int, max_tokens: int) -> float:
        raise AssertionError("early_stopping='never' is refused with a custom scorer")


def _checked(answer: object, count: int) -> F64:
    try:
        scores: F64 = np.asarray(answer, np.float64).copy()  # the caller may keep it
    except BaseException:  # so may what it returns: a tensor with a gradient raises RuntimeError
        scores = np.empty(0, np.float64)
    if scores.shape != (count,) or not np.isfinite(scores).all():
        raise GroupFailedError(
            f"scorer: the function must return a finite number for each of {count} hypotheses, not "
            f"{shown(answer)}",
            field="scorer",
        )
    return scores
