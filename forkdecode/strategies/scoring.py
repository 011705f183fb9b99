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
    with np.errstate(over="ignore", under="ignore"):
        scores = selection / length_scale(generated, length_penalty)
    return np.asarray(np.minimum(np.maximum(scores, _LIMITS.min), _LIMITS.max), np.float32)


def mean_logprob(cumulative: F64, generated: ArrayLike) -> NDArray[np.float64]:
    """[N] cumulative log-probability per generated token."""
    return np.asarray(cumulative / np.asarray(generated, np.float64), np.float64)
