"""Whole samples of one prompt, ranked by a verifier or by vote."""

from __future__ import annotations

from collections.abc import Sequence

from forkdecode.checks import check_int
from forkdecode.search.branch import Branch
from forkdecode.search.pool import Answer, Pool, Vote, check_answer
from forkdecode.search.work import Expand, Expanded, How, Work, children_of
from forkdecode.types import MAX_COUNT


class BestOfN:
    """Best of n by a verifier: argmax_i r(y_i) (Cobbe et al. 2021, "Training verifiers to solve math word
    problems").

    With `answer`, weighted best-of-n (Li et al. 2023, "Making language models better reasoners with
    step-aware verifier", section 3.1): of the answers a the one that maximises sum_i r(y_i) [a(y_i) = a],
    then of its branches the best. Only finished branches are shown to the verifier.
    """

    def __init__(self, n: int = 16, *, answer: Answer | None = None) -> None:
        self._n = check_int("n", n, 1, MAX_COUNT)
        self._pool = Pool(answer)
        self._root: int | None = None

    def begin(self, root: Branch) -> None:
        """Policy.begin."""
        self._root = root.id
        self._pool.clear()

    def ask(self) -> Work:
        """Policy.ask."""
        if self._root is None:
            return Work()
        return Work((Expand(self._root, self._n, How(whole=True), "finished"),))

    def tell(self, results: Sequence[Expanded]) -> None:
        """Policy.tell."""
        self._root = None
        self._pool.add(children_of(results))

    def ranked(self) -> Sequence[Branch]:
        """Policy.ranked."""
        return self._pool.ranked()

    def votes(self) -> list[Vote]:
        """The answers, heaviest first."""
        return self._pool.votes()


class SelfConsistency:
    """The answer that most of n samples reach (Wang et al. 2022, "Self-consistency improves chain of thought
    reasoning in language models", unweighted): argmax_a sum_i [a(y_i) = a]. No verifier; a sample that is
    unfinished, or reaches no answer, does not vote."""

    def __init__(self, answer: Answer, n: int = 16) -> None:
        check_answer(answer, needed=True)
        self._n = check_int("n", n, 1, MAX_COUNT)
        self._pool = Pool(answer, weighted=False)
        self._root: int | None = None

    def begin(self, root: Branch) -> None:
        """Policy.begin."""
        self._root = root.id
        self._pool.clear()

    def ask(self) -> Work:
        """Policy.ask."""
        if self._root is None:
            return Work()
        return Work((Expand(self._root, self._n, How(whole=True), "none"),))

    def tell(self, results: Sequence[Expanded]) -> None:
        """Policy.tell."""
        self._root = None
        self._pool.add(children_of(results))

    def ranked(self) -> Sequence[Branch]:
        """Policy.ranked: those of the most frequent answer first."""
        return self._pool.ranked()

    def votes(self) -> list[Vote]:
        """The answers, most frequent first."""
        return self._pool.votes()
