"""Diverse verifier tree search."""

from __future__ import annotations

from collections.abc import Sequence

from forkdecode.checks import check_int
from forkdecode.search.branch import Branch
from forkdecode.search.pool import Aggregate, Answer, Pool, Vote, best_first
from forkdecode.search.work import Expand, Expanded, Work, children_of
from forkdecode.types import MAX_COUNT


class Dvts:
    """DVTS (Beeching, Tunstall and Rush 2024, "Scaling test-time compute with open models"): `subtrees`
    searches of one beam each that never compete, so that one early favourite cannot take all the budget.

    Each subtree draws `expand` first steps from the root, keeps the one of highest value, draws `expand`
    next steps from that, and so on, until the one it keeps is finished or cut, or `max_steps` steps were
    made. All finished branches are ranked together; with `answer` by the weighted vote, as in the source.
    """

    def __init__(
        self,
        subtrees: int = 4,
        expand: int = 4,
        *,
        max_steps: int = 64,
        aggregate: Aggregate = "last",
        answer: Answer | None = None,
    ) -> None:
        self._subtrees = check_int("subtrees", subtrees, 1, MAX_COUNT)
        self._expand = check_int("expand", expand, 1, MAX_COUNT)
        self._max_steps = check_int("max_steps", max_steps, 1)
        self._pool = Pool(answer, aggregate=aggregate)
        self._next = Work()
        self._steps = 0

    def begin(self, root: Branch) -> None:
        """Policy.begin."""
        self._pool.clear()
        self._steps = 0
        self._next = Work((Expand(root.id, self._expand),) * self._subtrees)

    def ask(self) -> Work:
        """Policy.ask."""
        return self._next

    def tell(self, results: Sequence[Expanded]) -> None:
        """Policy.tell."""
        self._steps += 1
        expand: list[Expand] = []
        prune: list[int] = []
        self._pool.add(children_of(results))
        for result in results:
            best, *rest = best_first(result.children, self._pool.aggregate) or (None,)
            prune.extend(child.id for child in rest if child is not None and not child.is_finished)
            if best is not None and best.state == "open" and self._steps < self._max_steps:
                expand.append(Expand(best.id, self._expand))
        self._next = Work(tuple(expand), tuple(prune))

    def ranked(self) -> Sequence[Branch]:
        """Policy.ranked."""
        return self._pool.ranked()

    def votes(self) -> list[Vote]:
        """The answers, heaviest first."""
        return self._pool.votes()
