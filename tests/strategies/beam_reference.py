"""The beam step in plain lists: what BeamPolicy and DiverseBeamPolicy are compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from forkdecode.strategies.hypotheses import LENGTH, LIVE
from forkdecode.types import Beam, Contrastive, CustomScorer, DiverseBeam, LengthNormalised
from tests.strategies.toy import Markov

Path = tuple[int, ...]
Hypothesis = tuple[Path, float, int]
Live = list[tuple[Path, np.float32]]


class Model(Protocol):
    """What a beam searches."""

    def row(self, path: Path) -> np.ndarray:
        """[V] log-probabilities after `path`, float32; -inf for what may not follow."""

    def ends(self, path: Path) -> int:
        """Why `path` is complete by its last token, LIVE where it is not."""


class OfMarkov:
    """A model by the last token."""

    def __init__(self, model: Markov) -> None:
        self._model = model

    def row(self, path: Path) -> np.ndarray:
        return self._model.logprobs[path[-1] if path else 0]

    def ends(self, path: Path) -> int:
        return self._model.reason(path[-2] if path[1:] else 0, path[-1])


class Candidate(NamedTuple):
    """A continuation. rank: its place among those of its row; ranking: what it is chosen by."""

    ranking: float
    row: int
    rank: int
    path: Path
    total: np.float32
    reason: int


def score_of(beam: Beam | DiverseBeam) -> Callable[[np.float32, int], float]:
    """What a hypothesis of that sum and length is ranked by."""
    scorer, penalty = beam.scorer, beam.length_penalty
    if isinstance(scorer, LengthNormalised):
        return lambda total, g: float(total) / ((5 + g) / 6) ** scorer.alpha
    if isinstance(scorer, Contrastive):
        of = scorer.baseline
        return lambda total, g: (float(total) - scorer.weight * of[min(g, len(of)) - 1]) / g**penalty
    if isinstance(scorer, CustomScorer):
        return lambda total, g: float(scorer.function(np.array([float(total)]), g, scorer.data)[0])
    return lambda total, g: float(total / np.float32(g**penalty))


def candidates(model: Model, live: Live, last: bool) -> list[Candidate]:
    """All legal ones, each row's from the best down."""
    found = []
    for row, (path, total) in enumerate(live):
        tokens = [(np.float32(total + own), token) for token, own in enumerate(model.row(path))]
        tokens = sorted((t for t in tokens if t[0] > -np.inf), key=lambda t: (-t[0], t[1]))
        for rank, (score, token) in enumerate(tokens):
            reason = model.ends((*path, token)) or (LENGTH if last else LIVE)
            found.append(Candidate(float(score), row, rank, (*path, token), score, reason))
    return found


class Pool:
    """The hypotheses of one beam, and whether it needs more."""

    def __init__(self, beam: Beam | DiverseBeam, size: int, max_tokens: int) -> None:
        self.beam, self.size, self.max_tokens = beam, size, max_tokens
        self.score = score_of(beam)
        self.kept: list[Hypothesis] = []

    def add(self, ended: Sequence[Candidate]) -> None:
        self.kept += [(c.path, self.score(c.total, len(c.path)), c.reason) for c in ended]
        self.kept.sort(key=lambda h: -h[1])
        self.kept = self.kept[: self.size]

    def is_done(self, live: Live) -> bool:
        if not live:
            return True
        if len(self.kept) < self.size:
            return False
        return self.beam.early_stopping is True or not self.hope(live) > self.kept[-1][1]

    def hope(self, live: Live) -> float:
        """What the live rows may come to score."""
        best, g = max(total for _, total in live), len(live[0][0])
        if self.beam.early_stopping is False:
            return max(self.score(total, g) for _, total in live)
        if self.beam.scorer is not None:
            return max(self.score(best, length) for length in range(g, self.max_tokens + 1))
        return self.score(best, self.max_tokens if self.beam.length_penalty > 0 else g)


def step(ordered: Sequence[Candidate], width: int) -> tuple[list[Candidate], list[Candidate]]:
    """Those that go on, and those that end as one of the first `width`."""
    going_on = [c for c in ordered if c.reason == LIVE][:width]
    return going_on, [c for c in ordered[:width] if c.reason != LIVE]


def beam_search(model: Model, beam: Beam, max_tokens: int) -> list[Hypothesis]:
    """(tokens, score, reason), best first. All legal continuations are candidates: the step's K is
    only a bound on what can matter."""
    live: Live = [((), np.float32(0))]
    pool = Pool(beam, beam.pool_size, max_tokens)
    for g in range(1, max_tokens + 1):
        found = [
            c._replace(ranking=float(c.total) - beam.sibling_penalty * c.rank)
            for c in candidates(model, live, g == max_tokens)
        ]
        found.sort(key=lambda c: (-c.ranking, c.row, c.rank))
        width = beam.widths[min(g, len(beam.widths)) - 1] if beam.widths else beam.width
        going_on, ended = step(found, width)
        pool.add(ended)
        live = [(c.path, c.total) for c in going_on]
        is_greedy = beam.width == beam.pool_size == 1
        if pool.is_done(live) or (is_greedy and pool.kept):
            break
    return pool.kept[: beam.num_return_sequences]


def diverse_beam_search(model: Model, beam: DiverseBeam, max_tokens: int) -> list[Hypothesis]:
    """(tokens, score, reason), best first, of all groups."""
    width = beam.width // beam.groups
    groups: list[Live] = [[((), np.float32(0))] for _ in range(beam.groups)]
    pools = [Pool(beam, width, max_tokens) for _ in groups]
    for g in range(1, max_tokens + 1):
        taken: Counter[int] = Counter()
        for number, (live, pool) in enumerate(zip(groups, pools, strict=True)):
            found = [
                c._replace(ranking=float(c.total) - beam.diversity_penalty * taken[c.path[-1]])
                for c in candidates(model, live, g == max_tokens)
            ]
            found.sort(key=lambda c: (-c.ranking, c.row, c.rank))
            going_on, ended = step(found, width)
            pool.add(ended)
            if pool.is_done([(c.path, c.total) for c in going_on]):
                going_on = []
            groups[number] = [(c.path, c.total) for c in going_on]
            # Only now: a group does not avoid its own tokens.
            taken.update(c.path[-1] for c in [*going_on, *ended])
    together = [hypothesis for pool in pools for hypothesis in pool.kept]
    return sorted(together, key=lambda h: -h[1])[: beam.num_return_sequences]
