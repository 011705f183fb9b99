"""Beam search in plain lists, one path at a time, and by how little its decisions were decided.

The specification that the engine and `generate` are both compared with. Every legal continuation is
a candidate, so nothing depends on how many a step would fetch. It keeps book of what makes the
comparison with `generate` sensible at all: the smallest gap that decided anything (torch.topk breaks
ties arbitrarily, and sums differ in their last bits), and the fewest legal candidates of any step
(`generate` fills up with rows at -1e9).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from forkdecode.step import F32
from forkdecode.types import Beam, EarlyStopping

Path = tuple[int, ...]
Scores = Callable[[Sequence[Path]], F32]
"""Generated tokens of the R live paths -> processed log-probabilities [R, V] of their next tokens."""


@dataclass(frozen=True)
class Hypothesis:
    """tokens: generated ones, what ended them included. score: what they are ranked by."""

    tokens: Path
    score: float


@dataclass
class Search:
    """What a search came to. gap: the smallest difference that decided anything, in units of what sums
    of log-probabilities are uncertain in: the sums themselves, and not less than 1."""

    hypotheses: list[Hypothesis] = field(default_factory=list)
    gap: float = math.inf
    gap_at: str = "nothing"
    fewest_legal: float = math.inf

    def decided(self, a: float, b: float, what: str, unit: float = 1.0) -> None:
        """Notes a decision between two scores. unit: what 1 in a sum is in them, after length penalties."""
        gap = abs(a - b) / max(unit, abs(a), abs(b))
        if gap < self.gap:
            self.gap, self.gap_at = gap, what


@dataclass(frozen=True)
class Rule:
    """A beam search's settings. pool: how many hypotheses are kept."""

    width: int
    max_tokens: int
    length_penalty: float
    early_stopping: EarlyStopping
    pool: int

    @staticmethod
    def of(beam: Beam, max_tokens: int) -> Rule:
        """Width 1 is greedy search, whose first end is the end."""
        early = True if beam.width == 1 else beam.early_stopping
        return Rule(beam.width, max_tokens, beam.length_penalty, early, beam.pool_size)

    @property
    def greedy(self) -> bool:
        return self.width == self.pool == 1

    def score(self, total: np.float32, generated: int) -> float:
        """total / generated ** length_penalty in float32."""
        return float(np.float32(total) / np.float32(generated**self.length_penalty))

    def unit(self, *generated: int) -> float:
        """The score that a sum of 1 has, at the length where it is largest."""
        return max(g**-self.length_penalty for g in generated)


def beam_search(
    rule: Rule, scores: Scores, ends: Callable[[Path], bool], search: Search | None = None
) -> Search:
    """ends: whether a path is complete with its last token; at max_tokens every path is. search: an
    empty one to fill, for callers whose `scores` may raise."""
    search = Search() if search is None else search
    pool = search.hypotheses
    live: list[tuple[Path, np.float32]] = [((), np.float32(0))]
    for g in range(1, rule.max_tokens + 1):
        last = g == rule.max_tokens
        live = _step(rule, search, live, pool, scores, ends, last=last)
        _keep_best(rule, search, pool)
        if last or not live or _over(rule, search, live[0][1], pool, g):
            break
    for better, worse in itertools.pairwise(pool):
        _compare(rule, search, better, worse, "the order of two hypotheses")
    return search


def _step(
    rule: Rule,
    search: Search,
    live: list[tuple[Path, np.float32]],
    pool: list[Hypothesis],
    scores: Scores,
    ends: Callable[[Path], bool],
    *,
    last: bool,
) -> list[tuple[Path, np.float32]]:
    """The next live paths; what ends among the first W goes to the pool."""
    table = np.array([t for _, t in live], np.float32)[:, None] + scores([path for path, _ in live])
    vocab = table.shape[1]
    flat = table.reshape(-1)
    order = np.argsort(-flat, kind="stable")  # by score, then row, then token
    order = order[: int((flat > -np.inf).sum())]
    ranked = flat[order]
    search.fewest_legal = min(search.fewest_legal, len(order))
    following: list[tuple[Path, np.float32]] = []
    for rank, at in enumerate(order.tolist()):
        path = (*live[at // vocab][0], at % vocab)
        if last or ends(path):
            _note_end(search, ranked, rank, rule.width)
            if rank < rule.width:
                pool.append(Hypothesis(path, rule.score(flat[at], len(path))))
            elif last:
                break
        elif len(following) < rule.width:
            following.append((path, flat[at]))
        else:
            search.decided(float(following[-1][1]), float(flat[at]), "the last beam")
            break
    return following


def _note_end(search: Search, ranked: F32, rank: int, width: int) -> None:
    """Whether a path that ends counts depends on which side of rank W it stands."""
    other = width if rank < width else width - 1
    if other < len(ranked):
        search.decided(float(ranked[rank]), float(ranked[other]), "whether an end is among the first W")


def _keep_best(rule: Rule, search: Search, pool: list[Hypothesis]) -> None:
    pool.sort(key=lambda h: -h.score)
    if len(pool) > rule.pool:
        _compare(rule, search, pool[rule.pool - 1], pool[rule.pool], "the last hypothesis kept")
    del pool[rule.pool :]


def _compare(rule: Rule, search: Search, a: Hypothesis, b: Hypothesis, what: str) -> None:
    search.decided(a.score, b.score, what, rule.unit(len(a.tokens), len(b.tokens)))


def _over(rule: Rule, search: Search, best: np.float32, pool: list[Hypothesis], generated: int) -> bool:
    if len(pool) < rule.pool:
        return False
    if rule.early_stopping is True:
        return True
    hopeful = rule.early_stopping == "never" and rule.length_penalty > 0
    length = rule.max_tokens if hopeful else generated
    possible = rule.score(best, length)
    search.decided(possible, pool[-1].score, "whether to stop", rule.unit(length, len(pool[-1].tokens)))
    return not possible > pool[-1].score
