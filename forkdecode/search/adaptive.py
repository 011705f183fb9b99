"""Self-consistency that stops when the vote is decided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from forkdecode.checks import check_float, check_int
from forkdecode.search.branch import Branch
from forkdecode.search.pool import Answer, Pool, Vote, check_answer
from forkdecode.search.work import Expand, Expanded, How, Work, children_of
from forkdecode.types import MAX_COUNT


def lead_confidence(first: int, second: int) -> float:
    """The probability that the answer with `first` votes is the more likely one of it and the next, with
    `second` votes.

    Aggarwal et al. 2023, "Let's sample step by step: Adaptive-Consistency for efficient reasoning and coding
    with LLMs", the Beta stopping criterion: p, the share of the first among the two, has a uniform prior, so
    after the votes p ~ Beta(first + 1, second + 1) and the confidence is P(p > 1/2) = 1 - I_1/2(first + 1,
    second + 1). For integers that is P(X <= first), X ~ Binomial(first + second + 1, 1/2), computed here in
    integers.
    """
    draws = first + second + 1
    return float(Fraction(sum(math.comb(draws, k) for k in range(first + 1)), 2**draws))


class AdaptiveConsistency:
    """Samples `batch` answers at a time, at most n, until the vote is decided: `lead_confidence` of the two
    most frequent answers is at least `confidence` (0.95 in the paper), or the second can't overtake the first
    with all the samples that are left. Samples that reach no answer don't vote, but count. No verifier.
    """

    def __init__(self, answer: Answer, n: int = 40, *, confidence: float = 0.95, batch: int = 4) -> None:
        check_answer(answer, needed=True)
        self._n = check_int("n", n, 1, MAX_COUNT)
        self._confidence = check_float("confidence", confidence, 0.5, 1.0)
        self._batch = check_int("batch", batch, 1, MAX_COUNT)
        self._pool = Pool(answer, weighted=False)
        self._root: int | None = None
        self._drawn = 0

    def begin(self, root: Branch) -> None:
        """Policy.begin."""
        self._root = root.id
        self._drawn = 0
        self._pool.clear()

    @property
    def is_decided(self) -> bool:
        """Whether more samples are not worth it."""
        votes = self._pool.votes()
        if not votes:
            return False
        first, second = votes[0].count, votes[1].count if len(votes) > 1 else 0
        if first - second > self._n - self._drawn:
            return True
        return lead_confidence(first, second) >= self._confidence

    def ask(self) -> Work:
        """Policy.ask."""
        left = self._n - self._drawn
        if self._root is None or left <= 0 or self.is_decided:
            return Work()
        return Work((Expand(self._root, min(self._batch, left), How(whole=True), "none"),))

    def tell(self, results: Sequence[Expanded]) -> None:
        """Policy.tell."""
        self._drawn += sum(result.expand.n for result in results)
        self._pool.add(children_of(results))

    def ranked(self) -> Sequence[Branch]:
        """Policy.ranked: those of the most frequent answer first."""
        return self._pool.ranked()

    def votes(self) -> list[Vote]:
        """The answers, most frequent first."""
        return self._pool.votes()
