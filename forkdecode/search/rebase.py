"""Reward-balanced search."""

from __future__ import annotations

import math
from collections.abc import Sequence

from forkdecode.checks import check_float, check_int
from forkdecode.search.branch import Branch
from forkdecode.search.pool import Aggregate, Answer, Pool, Vote, best_first, value
from forkdecode.search.work import Expand, Expanded, Work, children_of
from forkdecode.types import MAX_COUNT


def allocate(rewards: Sequence[float], width: int, temperature: float) -> list[int]:
    """width children shared out in proportion to softmax(rewards / temperature).

    The paper rounds each share, and so may miss the width; here the shares are rounded down and what is left
    goes to the largest remainders, ties to the earlier, so that they sum to the width.
    """
    top = max(rewards)
    weights = [math.exp((reward - top) / temperature) for reward in rewards]
    total = math.fsum(weights)
    exact = [width * weight / total for weight in weights]
    shares = [math.floor(share) for share in exact]
    order = sorted(range(len(exact)), key=lambda i: shares[i] - exact[i])
    for i in order[: width - sum(shares)]:
        shares[i] += 1
    return shares


class Rebase:
    """REBASE (Wu et al. 2024, "Inference scaling laws: an empirical analysis of compute-optimal inference
    for LLM problem-solving", section on reward-balanced search).

    From the root `width` first steps are drawn. At each depth, of the open branches n_j with rewards R(n_j),
    branch j gets W_j = B softmax_j(R(n_j) / T) children, where B is the width less the branches that have
    finished so far; branches that get none are pruned. It ends when B is 0 or none is open, or after
    `max_steps` depths. temperature T: low ones follow the reward, high ones share evenly.
    With `answer` the finished are ranked by the weighted vote, as in the paper.
    """

    def __init__(
        self,
        width: int = 16,
        *,
        temperature: float = 0.2,
        max_steps: int = 64,
        aggregate: Aggregate = "last",
        answer: Answer | None = None,
    ) -> None:
        self._width = check_int("width", width, 1, MAX_COUNT)
        self._temperature = check_float("temperature", temperature, 0.0, open_low=True)
        self._max_steps = check_int("max_steps", max_steps, 1)
        self._pool = Pool(answer, aggregate=aggregate)
        self._next = Work()
        self._steps = 0

    def begin(self, root: Branch) -> None:
        """Policy.begin."""
        self._pool.clear()
        self._steps = 0
        self._next = Work((Expand(root.id, self._width),))

    def ask(self) -> Work:
        """Policy.ask."""
        return self._next

    def tell(self, results: Sequence[Expanded]) -> None:
        """Policy.tell."""
        self._steps += 1
        children = children_of(results)
        self._pool.add(children)
        going = best_first((c for c in children if c.state == "open"), self._pool.aggregate)
        width = self._width - len(self._pool)
        if not going or width <= 0 or self._steps >= self._max_steps:
            self._next = Work(prune=())
            return
        shares = allocate([value(c, self._pool.aggregate) for c in going], width, self._temperature)
        given = list(zip(going, shares, strict=True))
        self._next = Work(
            tuple(Expand(child.id, share) for child, share in given if share),
            tuple(child.id for child, share in given if not share),
        )

    def ranked(self) -> Sequence[Branch]:
        """Policy.ranked."""
        return self._pool.ranked()

    def votes(self) -> list[Vote]:
        """The answers, heaviest first."""
        return self._pool.votes()
