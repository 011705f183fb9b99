"""What hypotheses are ranked by."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forkdecode.step import F32
from forkdecode.strategies.hypotheses import F64

_LIMITS = np.finfo(np.float32)


def length_scale(generated: int, length_penalty: float) -> np.float32:
    """generated ** length_penalty, held within float32's normal range."""
    try:
        scale = float(generated) ** length_penalty
    except OverflowError:
        return _LIMITS.max
    return np.float32(min(max(scale, float(_LIMITS.tiny)), float(_LIMITS.max)))


def beam_score(selection: F32, generated: int, length_penalty: float) -> F32:
    """[N] selection_logprob / generated ** length_penalty, one float32 division, as transformers
    computes it (generation/utils.py, `_update_finished_beams`); but finite whatever the penalty."""
    scale = length_scale(generated, length_penalty)
    if scale >= 1:  # can't overflow, and to say so costs more than the division
        scores = selection / scale
    else:
        with np.errstate(over="ignore", under="ignore"):
            scores = selection / scale
    return np.asarray(np.minimum(np.maximum(scores, _LIMITS.min), _LIMITS.max), np.float32)


def length_normalised_score(selection: ArrayLike, generated: ArrayLike, alpha: float) -> F64:
    """selection / ((5 + generated) / 6) ** alpha: Wu et al. 2016, equation 14, without coverage. Finite
    whatever alpha is; the two arguments broadcast."""
    scale = _held((5.0 + np.asarray(generated, np.float64)) / 6.0, alpha)
    return np.asarray(np.asarray(selection, np.float64) / scale, np.float64)


def contrastive_score(
    selection: ArrayLike, generated: ArrayLike, baseline: F64, weight: float, length_penalty: float
) -> F64:
    """(selection - weight * baseline[generated - 1]) / generated ** length_penalty; the last entry of the
    baseline stands for all longer lengths. Finite whatever the penalty; the two arguments broadcast."""
    length = np.asarray(generated, np.int64)
    gained = np.asarray(selection, np.float64) - weight * baseline[np.minimum(length, len(baseline)) - 1]
    return np.asarray(gained / _held(length.astype(np.float64), length_penalty), np.float64)


def _held(length: F64, power: float) -> F64:
    """length ** power, held within float32's normal range."""
    with np.errstate(over="ignore", under="ignore"):
        return np.clip(length**power, float(_LIMITS.tiny), float(_LIMITS.max))


def mean_logprob(cumulative: F64, generated: ArrayLike) -> NDArray[np.float64]:
    """[N] cumulative log-probability per generated token."""
    return np.asarray(cumulative / np.asarray(generated, np.float64), np.float64)
