"""The workloads that peers are compared on."""

from __future__ import annotations

from dataclasses import dataclass

MIXED = tuple(40 + 160 * i // 15 for i in range(16))
TEMPERATURE, TOP_P = 0.8, 0.95
TOKENS = 64
"""New ones of each candidate, unless a run says otherwise."""
SEED = 1
"""Of whoever draws: each side its own numbers from it."""
STREAM = "stream"
"""Said after a workload and its tokens: when do its tokens come?"""


@dataclass(frozen=True)
class Workload:
    """lengths: of the prompts, in tokens. kind: "beam", "sample" or "greedy", with `rows` candidates each.
    goal: ours over transformers, of throughput."""

    name: str
    lengths: tuple[int, ...]
    kind: str
    rows: int
    goal: float | None = None

    @property
    def candidates(self) -> int:
        """Beams or samples of all prompts."""
        return len(self.lengths) * self.rows

    @property
    def sequences(self) -> int:
        """What comes back: all samples, or the best beam of each prompt."""
        return len(self.lengths) if self.kind == "beam" else self.candidates


WORKLOADS = (
    Workload("beam4x16", MIXED, "beam", 4, 4.0),
    Workload("beam8x1000", (1000,), "beam", 8, 7.0),
    Workload("sample8x16", MIXED, "sample", 8, 6.0),
    Workload("sample32x1000", (1000,), "sample", 32, 20.0),
    Workload("greedyx16", MIXED, "greedy", 1, 2.8),
)
ALONE = (Workload("greedy1x200", (200,), "greedy", 1), Workload("beam4x200", (200,), "beam", 4))
"""One request with nothing beside it, for latency."""
