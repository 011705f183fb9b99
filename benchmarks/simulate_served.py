"""What became of simulated requests: 32 bytes each, however many there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from forkdecode.strategies.hypotheses import F64

WARM_UP = 0.25
"""Of the arrivals, the first that no rate counts."""


@dataclass(frozen=True)
class Target:
    """Seconds to the first token, and seconds a token after it on average."""

    first: float
    token: float

    def met(self, first: float, per_token: float) -> bool:
        return first <= self.first and per_token <= self.token


class Served:
    """Of each finished request: when it arrived, seconds to the first token, seconds a token after it, and
    when it ended."""

    def __init__(self, count: int) -> None:
        self._columns = np.empty((4, count))
        self.finished = 0

    def add(self, arrived: float, first: float, per_token: float, ended: float) -> None:
        self._columns[:, self.finished] = arrived, first, per_token, ended
        self.finished += 1

    @property
    def arrived(self) -> F64:
        return self._column(0)

    @property
    def first(self) -> F64:
        return self._column(1)

    @property
    def per_token(self) -> F64:
        return self._column(2)

    @property
    def ended(self) -> F64:
        return self._column(3)

    def _column(self, number: int) -> F64:
        column: F64 = self._columns[number, : self.finished]
        return column

    def report(self, target: Target, arrivals: F64, now: float) -> dict[str, Any]:
        """Rates are of the time in which requests keep coming: without the first quarter of `arrivals` and
        what comes after the last of them, or `now` if that is earlier. At both ends of it `waiting` counts
        those that have arrived and not ended: where load is carried the two are alike, else they grow."""
        arrived, ended, first, per_token = self.arrived, self.ended, self.first, self.per_token
        begin, end = 0.0, now
        if arrivals[-1] > 0:
            begin, end = float(arrivals[int(WARM_UP * len(arrivals))]), min(now, float(arrivals[-1]))
        met = (first <= target.first) & (per_token <= target.token)
        inside = (ended >= begin) & (ended <= end)
        mine = (arrived >= begin) & (arrived <= end)
        span = max(end - begin, 1e-9)
        quantiles = {
            f"{name}_p{int(100 * q)}": float(np.quantile(values[mine], q)) if mine.any() else 0.0
            for name, values in (("first_token", first), ("time_per_token", per_token))
            for q in (0.5, 0.9, 0.99)
        }
        return {
            "finished": self.finished,
            "window_seconds": span,
            "window_requests": int(mine.sum()),
            "waiting": [int((arrivals <= t).sum() - (ended <= t).sum()) for t in (begin, end)],
            "requests_per_second": float(inside.sum()) / span,
            "goodput": float((mine & met).sum()) / span,
            "met": float(met[mine].mean()) if mine.any() else 0.0,
            **quantiles,
        }
