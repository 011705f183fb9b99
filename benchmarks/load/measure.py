"""What one request took as its client saw it, and what many took together."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Seen:
    """One request. Times in seconds; first: until the first token was there. status: "ok", or the
    error's name. meant: the fault its client committed, and with it which status was to be expected."""

    kind: str
    meant: str = "ok"
    status: str = ""
    first: float | None = None
    total: float = 0.0
    tokens: int = 0
    """Of the longest candidate."""
    gaps: list[float] = field(default_factory=list)
    """Seconds between two parts that brought a candidate new tokens (a beam: new hypotheses)."""
    problem: str | None = None

    @property
    def per_token(self) -> float | None:
        """Seconds a token after the first."""
        if self.first is None or self.tokens < 2:
            return None
        return (self.total - self.first) / (self.tokens - 1)


@dataclass(slots=True)
class Summary:
    """Everything seen in a run."""

    seen: list[Seen] = field(default_factory=list)

    def problems(self) -> list[str]:
        """What nobody asked for."""
        return [f"{s.kind}, meant {s.meant}: {s.problem}" for s in self.seen if s.problem]

    def record(self, seconds: float) -> dict[str, object]:
        """For benchmarks.record."""
        good = [s for s in self.seen if s.meant == "ok"]
        return {
            "requests": len(self.seen),
            "seconds": seconds,
            "requests_per_second": len(self.seen) / seconds,
            "by_status": dict(Counter(f"{s.meant}: {s.status}" for s in self.seen)),
            "by_strategy": dict(Counter(s.kind for s in self.seen)),
            "time_to_first_token": percentiles(s.first for s in good),
            "time_per_token": percentiles(s.per_token for s in good),
            "between_tokens": percentiles(gap for s in good for gap in s.gaps),
            "total_time": percentiles(s.total for s in good),
            "problems": self.problems()[:20],
            "num_problems": len(self.problems()),
        }


def percentiles(values: Iterable[float | None]) -> dict[str, float]:
    """p50, p90, p99 and mean of what is there."""
    found = sorted(v for v in values if v is not None)
    if not found:
        return {}
    return {
        **{f"p{p}": found[min(len(found) - 1, len(found) * p // 100)] for p in (50, 90, 99)},
        "mean": statistics.fmean(found),
        "count": len(found),
    }


def growth(samples: Sequence[float]) -> float:
    """Median of the last quarter over that of the second: 1 is flat. The first quarter warms up."""
    quarter = len(samples) // 4
    if not quarter:
        return 1.0
    return statistics.median(samples[-quarter:]) / statistics.median(samples[quarter : 2 * quarter])
