"""Step-level beam search with a verifier."""

from __future__ import annotations

from collections.abc import Sequence

from forkdecode.checks import check_int
from forkdecode.search.branch import Branch
from forkdecode.search.pool import Aggregate, Answer, Pool, Vote, best_first
from forkdecode.search.work import Expand, Expanded, Work, children_of
from forkdecode.types import MAX_COUNT


class StepBeam:
    """Beam search over steps (Yao et al. 2023, "Tree of thoughts", algorithm 2; Snell et al. 2024, "Scaling
    LLM test-time compute optimally can be more effective than scaling model parameters", section 5.1).

    From the root width * expand first steps are drawn. Each round keeps the `width` children of highest
    value among all of the round, finished or not; the finished among them leave the beam for the pool, the
    open ones are expanded by `expand` steps each, the rest are pruned. It ends when `width` of those that
    were kept have finished or none is open. A finished branch that was not kept is still ranked: it costs
    nothing more. After `max_steps` rounds it ends in any case.
    aggregate: how a path's scores make its value. answer: see Pool.
    """

    def __init__(
        self,
        width: int = 4,
        expand: int = 4,
        *,
        max_steps: int = 64,
        aggregate: Aggregate = "last",
        answer: Answer | None = None,
    ) -> None:
        self._width = check_int("width", width, 1, MAX_COUNT)
        self._expand = check_int("expand", expand, 1, MAX_COUNT)
        self._max_steps = check_int("max_steps", max_steps, 1)
        self._pool = Pool(answer, aggregate=aggregate)
        self._next = Work()
        self._done = self._steps = 0

    def begin(self, root: Branch) -> None:
        """Policy.begin."""
        self._pool.clear()
        self._done = self._steps = 0
        self._next = Work((Expand(root.id, self._width * self._expand),))

    def ask(self) -> Work:
        """Policy.ask."""
        return self._next

    def tell(self, results: Sequence[Expanded]) -> None:
        """Policy.tell."""
        children = children_of(results)
        self._pool.add(children)
        ranked = best_first(children, self._pool.aggregate)
        kept, rest = ranked[: self._width], ranked[self._width :]
        self._done += sum(child.is_finished for child in kept)
        self._steps += 1
        going = [child for child in kept if child.state == "open"]
        if self._done >= self._width or self._steps >= self._max_steps:
            going = []
        pruned = tuple(child.id for child in rest if not child.is_finished)
        self._next = Work(tuple(Expand(child.id, self._expand) for child in going), pruned)

    def ranked(self) -> Sequence[Branch]:
        """Policy.ranked."""
        return self._pool.ranked()

    def votes(self) -> list[Vote]:
        """The answers, heaviest first."""
        return self._pool.votes()
