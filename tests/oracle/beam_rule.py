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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from forkdecode.step import F32
from forkdecode.types import Beam, Contrastive, DiverseBeam, EarlyStopping, HypothesisScorer, LengthNormalised

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


Score = Callable[[float, int], float]
"""What a hypothesis is ranked by: of its sum of log-probabilities and its number of generated tokens."""


@dataclass(frozen=True)
class Rule:
    """A beam search's settings. pool: how many hypotheses are kept. widths: of each step, the last of all
    that follow. scorer: in place of the length penalty; hopeful: whether a longer live beam might score
    better, by early_stopping="never"."""

    width: int
    max_tokens: int
    length_penalty: float
    early_stopping: EarlyStopping
    pool: int
    widths: tuple[int, ...] = ()
    sibling_penalty: float = 0.0
    scorer: Score | None = None

    @staticmethod
    def of(beam: Beam, max_tokens: int) -> Rule:
        """Width 1 is greedy search, whose first end is the end."""
        early = True if beam.width == beam.pool_size == 1 else beam.early_stopping
        return Rule(
            beam.width,
            max_tokens,
            beam.length_penalty,
            early,
            beam.pool_size,
            beam.widths,
            beam.sibling_penalty,
            None if beam.scorer is None else scorer_rule(beam.scorer, beam.length_penalty),
        )

    @property
    def greedy(self) -> bool:
        return self.width == self.pool == 1

    def width_of(self, generated: int) -> int:
        """Of the step that chooses the generated token of this number, from 1."""
        return self.widths[min(generated, len(self.widths)) - 1] if self.widths else self.width

    def score(self, total: np.float32, generated: int) -> float:
        """total / generated ** length_penalty in float32, or what the scorer says."""
        if self.scorer is not None:
            return self.scorer(float(total), generated)
        return float(np.float32(total) / np.float32(generated**self.length_penalty))

    def hope(self, total: np.float32, generated: int) -> tuple[float, int]:
        """The best score that a live beam may still come to, and at which length, as early_stopping says."""
        if self.early_stopping != "never":
            return self.score(total, generated), generated
        if self.scorer is None:
            length = self.max_tokens if self.length_penalty > 0 else generated
            return self.score(total, length), length
        return max((self.score(total, n), n) for n in range(generated, self.max_tokens + 1))

    def unit(self, *generated: int) -> float:
        """The score that a sum of 1 has, at the length where it is largest."""
        if self.scorer is not None:
            return max(abs(self.scorer(-1.0, g) - self.scorer(-2.0, g)) for g in generated)
        return max(g**-self.length_penalty for g in generated)


def scorer_rule(scorer: HypothesisScorer, length_penalty: float) -> Score:
    """A scorer's definition."""
    if isinstance(scorer, LengthNormalised):
        alpha = scorer.alpha
        return lambda total, g: total / ((5 + g) / 6) ** alpha
    if isinstance(scorer, Contrastive):
        base, weight = scorer.baseline, scorer.weight
        return lambda total, g: (total - weight * base[min(g, len(base)) - 1]) / g**length_penalty
    function, data = scorer.function, scorer.data
    return lambda total, g: float(function(np.array([total]), g, data)[0])


@dataclass
class BeamGroup:
    """One beam search under way. ends: whether a path is complete with its last token; at max_tokens
    every path is."""

    rule: Rule
    scores: Scores
    ends: Callable[[Path], bool]
    search: Search
    live: list[tuple[Path, np.float32]] = field(default_factory=lambda: [((), np.float32(0))])
    pool: list[Hypothesis] = field(default_factory=list)
    over: bool = False

    def step(self, generated: int, penalties: Mapping[int, float] | None = None) -> Counter[int]:
        """The next live paths; what ends among the first W goes to the pool. penalties: what a token loses
        in rank. Returns how many went on or ended with which token; what is over goes on with nothing."""
        rule, taken = self.rule, Counter[int]()
        width, last = rule.width_of(generated), generated == rule.max_tokens
        totals, ranks = self._tables(penalties or {})
        vocab, flat = totals.shape[1], totals.reshape(-1)
        order = np.argsort(-ranks.reshape(-1), kind="stable")  # by rank, then row, then token
        order = order[: int((flat > -np.inf).sum())]
        ranked = ranks.reshape(-1)[order]
        self.search.fewest_legal = min(self.search.fewest_legal, len(order))
        following: list[tuple[Path, np.float32]] = []
        edge = 0.0
        for rank, at in enumerate(order.tolist()):
            path = (*self.live[at // vocab][0], at % vocab)
            if last or self.ends(path):
                self._note_end(ranked, rank, width)
                if rank < width:
                    self.pool.append(Hypothesis(path, rule.score(flat[at], len(path))))
                    taken[path[-1]] += 1
                elif last:
                    break
            elif len(following) < width:
                following.append((path, flat[at]))
                edge = float(ranked[rank])
            else:
                self.search.decided(edge, float(ranked[rank]), "the last beam")
                break
        self.live = following
        self._keep_best()
        self.over = last or not following or self._ended(generated)
        if not self.over:
            taken.update(path[-1] for path, _ in following)
        return taken

    def _tables(self, penalties: Mapping[int, float]) -> tuple[F32, F32]:
        """[R, V] sums, and what they are ranked by."""
        sums = np.array([t for _, t in self.live], np.float32)[:, None] + self.scores(
            [path for path, _ in self.live]
        )
        ranks = sums.copy()
        if self.rule.sibling_penalty:
            for row, values in enumerate(sums):
                among = np.empty(len(values), np.float32)
                among[np.argsort(-values, kind="stable")] = np.arange(len(values))
                ranks[row] = values - np.float32(self.rule.sibling_penalty) * among
        for token, penalty in penalties.items():
            ranks[:, token] -= np.float32(penalty)
        return sums, ranks

    def _note_end(self, ranked: F32, rank: int, width: int) -> None:
        """Whether a path that ends counts depends on which side of rank W it stands."""
        other = width if rank < width else width - 1
        if other < len(ranked):
            what = "whether an end is among the first W"
            self.search.decided(float(ranked[rank]), float(ranked[other]), what)

    def _keep_best(self) -> None:
        self.pool.sort(key=lambda h: -h.score)
        if len(self.pool) > self.rule.pool:
            last, next_one = self.pool[self.rule.pool - 1 : self.rule.pool + 1]
            self._compare(last, next_one, "the last hypothesis kept")
        del self.pool[self.rule.pool :]

    def _compare(self, a: Hypothesis, b: Hypothesis, what: str) -> None:
        compare(self.search, self.rule, a, b, what)

    def _ended(self, generated: int) -> bool:
        if len(self.pool) < self.rule.pool:
            return False
        if self.rule.early_stopping is True:
            return True
        best = max(total for _, total in self.live)
        possible, length = self.rule.hope(best, generated)
        unit = self.rule.unit(length, len(self.pool[-1].tokens))
        self.search.decided(possible, self.pool[-1].score, "whether to stop", unit)
        return not possible > self.pool[-1].score


def compare(search: Search, rule: Rule, a: Hypothesis, b: Hypothesis, what: str) -> None:
    """Notes that a was put before b."""
    if a.tokens != b.tokens:
        search.decided(a.score, b.score, what, rule.unit(len(a.tokens), len(b.tokens)))


def beam_search(
    rule: Rule, scores: Scores, ends: Callable[[Path], bool], search: Search | None = None
) -> Search:
    """search: an empty one to fill, for callers whose `scores` may raise."""
    search = Search() if search is None else search
    group = BeamGroup(rule, scores, ends, search, pool=search.hypotheses)
    for generated in range(1, rule.max_tokens + 1):
        group.step(generated)
        if group.over:
            break
    for better, worse in itertools.pairwise(search.hypotheses):
        compare(search, rule, better, worse, "the order of two hypotheses")
    return search


def diverse_search(
    beam: DiverseBeam, max_tokens: int, scores: Scores, ends: Callable[[Path], bool]
) -> Search:
    """Vijayakumar et al. 2016, algorithm 1: groups take turns at each step; a token costs the later ones
    diversity_penalty for each beam before them that has just taken it. Nothing else is common to them."""
    search = Search()
    each = beam.width // beam.groups
    scorer = None if beam.scorer is None else scorer_rule(beam.scorer, beam.length_penalty)
    rule = Rule(each, max_tokens, beam.length_penalty, beam.early_stopping, each, scorer=scorer)
    groups = [BeamGroup(rule, scores, ends, search) for _ in range(beam.groups)]
    for generated in range(1, max_tokens + 1):
        taken = Counter[int]()
        for group in groups:
            if not group.over:
                penalties = {t: beam.diversity_penalty * n for t, n in taken.items()}
                taken += group.step(generated, penalties)
    found = [hypothesis for group in groups for hypothesis in group.pool]
    search.hypotheses += sorted(found, key=lambda h: -h.score)[: beam.num_return_sequences]
    for better, worse in itertools.pairwise(sorted(found, key=lambda h: -h.score)):
        compare(search, rule, better, worse, "the order of two hypotheses")
    return search
