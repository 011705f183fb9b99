"""The finished hypotheses of several groups: a pool each, ranked together in the end."""

from __future__ import annotations

import numpy as np

from forkdecode.strategies.hypotheses import Hypotheses, HypothesisBatch


class HypothesisPools:
    """`groups` pools of the `limit` best each. None can drive out another's."""

    def __init__(self, groups: int, limit: int) -> None:
        self._pools = [Hypotheses(limit) for _ in range(groups)]

    def __len__(self) -> int:
        return sum(map(len, self._pools))

    def of(self, group: int) -> Hypotheses:
        """That group's pool."""
        return self._pools[group]

    def best(self, n: int | None = None) -> HypothesisBatch:
        """The n best, or all, best first; of equal scores those of the earlier group, then the earlier."""
        together = HypothesisBatch.joined([pool.best() for pool in self._pools])
        return together[np.argsort(-together.score, kind="stable")[:n]]
