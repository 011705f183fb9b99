"""What is simulated: a system, and the requests that reach it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.memory_trace import Trace


@dataclass(frozen=True)
class System:
    """What is simulated.

    shared: rows share blocks. forest: attention reads a shared block once. reserve: tokens of a
    contiguous cache that each row holds from its arrival on ("max": max_len, "exact": what it will
    need), None for blocks as they are filled. copies: of a beam's rows that move, "blocks" for
    copy-on-write, "forked" for the whole context of each row that leaves its parent's place, "all"
    for every row's context each step (as transformers reorders its cache). prompt_once: of rows that
    share nothing one reads the prompt and the others copy what it stored; else each reads it.
    """

    name: str
    shared: bool
    forest: bool
    copies: str
    reserve: str | None = None
    prompt_once: bool = False


SYSTEMS = {
    s.name: s
    for s in (
        System("forest", shared=True, forest=True, copies="blocks"),
        System("paged", shared=True, forest=False, copies="blocks"),
        System("copied", shared=False, forest=False, copies="forked", prompt_once=True),
        System("unshared", shared=False, forest=False, copies="forked"),
        System("exact", shared=False, forest=False, copies="forked", reserve="exact"),
        System("contiguous", shared=False, forest=False, copies="all", reserve="max"),
    )
}


@dataclass(frozen=True)
class Load:
    """count requests of `width` rows; rate: arrivals a second (Poisson), 0 for all at once."""

    trace: Trace
    kind: str
    width: int
    count: int
    rate: float
    seed: int = 0

    def arrivals(self) -> np.ndarray:
        rng = np.random.default_rng(self.seed + 1)
        if not self.rate:
            return np.zeros(self.count)
        return np.cumsum(rng.exponential(1 / self.rate, self.count))
