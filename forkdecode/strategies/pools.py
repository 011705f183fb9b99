"""The finished hypotheses of several groups: a pool each, ranked together in the end."""

from __future__ import annotations

import numpy as np

from forkdecode.strategies.hypotheses import NO_HYPOTHESES, Hypotheses, HypothesisBatch


class HypothesisPools:
    """A pool of the `limit` best for each group. None can drive out another's.

    They are made when they are asked for: a request with too many is refused after its policy is made.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pools: list[Hypotheses] = []

    def __len__(self) -> int:
        return sum(map(len, self._pools))

    def of(self, group: int) -> Hypotheses:
        """That group's pool."""
        while group >= len(self._pools):
            self._pools.append(Hypotheses(self._limit))
        return self._pools[group]

    def best(self, n: int | None = None) -> HypothesisBatch:
        """The n best, or all, best first; of equal scores those of the earlier group, then the earlier."""
        together = HypothesisBatch.joined([NO_HYPOTHESES, *(pool.best() for pool in self._pools)])
        return together[np.argsort(-together.score, kind="stable")[:n]]
