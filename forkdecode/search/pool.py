"""Finished branches: how they are ranked, and how they vote."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from forkdecode.checks import shown
from forkdecode.errors import invalid
from forkdecode.search.branch import Branch

Answer: TypeAlias = Callable[[str], Hashable | None]
"""Takes a completion, returns what it answers, equal for equal answers; None where it answers nothing."""
Aggregate: TypeAlias = Literal["last", "min", "mean", "product"]
"""How the scores along a path make one; see `value`."""


@dataclass(frozen=True, slots=True)
class Vote:
    """An answer, how many finished branches reach it, and the sum of their weights."""

    answer: Hashable
    count: int
    weight: float


def check_aggregate(value: object) -> Aggregate:
    """Raises InvalidRequestError."""
    for known in get_args(Aggregate):
        if value == known:
            return known  # type: ignore[no-any-return]
    raise invalid("aggregate", f"{shown(value)} is unknown", ", ".join(map(repr, get_args(Aggregate))))


def check_answer(value: object, *, needed: bool = False) -> None:
    """Raises InvalidRequestError for what is no answer extractor."""
    if not callable(value) and (needed or value is not None):
        raise invalid("answer", f"{shown(value)} is not callable", "a callable on a completion's text")


def value(branch: Branch, aggregate: Aggregate = "last") -> float:
    """One score of a path. last: the verifier's word on the branch itself (Snell et al. 2024, "Scaling LLM
    test-time compute optimally", and Beeching et al. 2024 take it); min and product: Lightman et al. 2023,
    "Let's verify step by step"; mean: of all. Raises InvalidRequestError if nothing was scored."""
    if not branch.scores:
        raise invalid("verifier", "has said nothing of a branch that is to be compared", "a verifier")
    if aggregate == "last":
        return branch.scores[-1]
    if aggregate == "min":
        return min(branch.scores)
    if aggregate == "mean":
        return math.fsum(branch.scores) / len(branch.scores)
    return math.prod(branch.scores)


def best_first(branches: Iterable[Branch], aggregate: Aggregate = "last") -> list[Branch]:
    """By value; of equal ones the earlier first."""
    return sorted(branches, key=lambda branch: -value(branch, aggregate))


class Pool:
    """The finished branches of a search, in the order in which they came.

    answer: with it they are ranked by the weight of the answer that they reach, then by value. weighted:
    a branch's vote weighs its value, which must not be negative; else 1, and ties go to the answer that
    came first.
    """

    def __init__(
        self, answer: Answer | None = None, *, aggregate: Aggregate = "last", weighted: bool = True
    ) -> None:
        check_answer(answer)
        self.aggregate: Aggregate = check_aggregate(aggregate)
        self._answer = answer
        self._weighted = weighted
        self._finished: list[Branch] = []
        self._votes: dict[Hashable, list[float]] = {}
        self._answers: dict[int, Hashable | None] = {}

    def clear(self) -> None:
        """For a new search."""
        self._finished.clear()
        self._votes.clear()
        self._answers.clear()

    def __len__(self) -> int:
        return len(self._finished)

    def add(self, branches: Iterable[Branch]) -> None:
        """Takes those that are finished. An answer that fails leaves its branch out, and no other: what it
        raised is raised when all others are in."""
        failure: Exception | None = None
        for branch in branches:
            if not branch.is_finished:
                continue
            try:
                self._take(branch)
            except Exception as error:
                failure = error if failure is None else failure
        if failure is not None:
            raise failure

    def _take(self, branch: Branch) -> None:
        if self._answer is not None:
            answer = self._answer(branch.completion)
            if answer is not None:
                weight = self._weight(branch)
                self._votes.setdefault(answer, []).append(weight)
            self._answers[branch.id] = answer
        self._finished.append(branch)

    def _weight(self, branch: Branch) -> float:
        if not self._weighted:
            return 1.0
        weight = value(branch, self.aggregate)
        if weight < 0:
            raise invalid("verifier", f"says {weight:g}, which cannot weigh a vote", "scores of at least 0")
        return weight

    def votes(self) -> list[Vote]:
        """The heaviest answer first; of equal ones that which came first."""
        votes = [Vote(answer, len(w), math.fsum(w)) for answer, w in self._votes.items()]
        return sorted(votes, key=lambda vote: -vote.weight)

    def ranked(self) -> Sequence[Branch]:
        """Best first."""
        if self._answer is None:
            return best_first(self._finished, self.aggregate)
        place = {vote.answer: i for i, vote in enumerate(self.votes())}

        def order(branch: Branch) -> tuple[int, float]:
            answer = self._answers[branch.id]
            rank = len(place) if answer is None else place[answer]
            return rank, -value(branch, self.aggregate) if branch.scores else 0.0

        return sorted(self._finished, key=order)
