"""The beam step in plain lists: what BeamPolicy is compared with."""

from __future__ import annotations

import numpy as np

from forkdecode.strategies.hypotheses import LENGTH, LIVE
from forkdecode.types import Beam
from tests.strategies.toy import Markov

Hypothesis = tuple[tuple[int, ...], float, int]


def beam_search(model: Markov, beam: Beam, max_tokens: int) -> list[Hypothesis]:
    """(tokens, score, reason), best first. All legal continuations are candidates: the step's K is
    only a bound on what can matter."""
    width, penalty = beam.width, beam.length_penalty
    live: list[tuple[tuple[int, ...], np.float32]] = [((), np.float32(0))]
    pool: list[Hypothesis] = []
    for g in range(1, max_tokens + 1):
        candidates = []
        for row, (path, total) in enumerate(live):
            last = path[-1] if path else 0
            for token in range(model.vocab):
                score = np.float32(total + model.logprobs[last, token])
                if score > -np.inf:
                    reason = model.reason(last, token) or (LENGTH if g == max_tokens else LIVE)
                    candidates.append((-float(score), row, token, (*path, token), score, reason))
        candidates.sort(key=lambda c: c[:3])
        following = []
        for rank, (_, _, _, path, score, reason) in enumerate(candidates):
            if reason == LIVE:
                following.append((path, score))
            elif rank < width:
                pool.append((path, float(score / np.float32(g**penalty)), reason))
        pool.sort(key=lambda h: -h[1])
        pool = pool[: beam.pool_size]
        live = following[:width]
        if not live:
            break
        if len(pool) == beam.pool_size:
            if beam.early_stopping is True or width == 1:
                break
            best = max_tokens if beam.early_stopping == "never" and penalty > 0 else g
            if not float(live[0][1] / np.float32(best**penalty)) > pool[-1][1]:
                break
    return pool[: beam.num_return_sequences]
