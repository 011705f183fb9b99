"""Monte Carlo tree search."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from forkdecode.checks import check_bool, check_float, check_int, shown
from forkdecode.errors import invalid
from forkdecode.search.branch import Branch
from forkdecode.search.pool import Answer, Pool, Vote, value
from forkdecode.search.work import Expand, Expanded, How, Work, children_of
from forkdecode.types import MAX_COUNT

Select: TypeAlias = Callable[[float, int, int, float], float]
"""From a child's mean value, its visits, its parent's visits and its prior: what to follow the highest of."""


def uct(exploration: float = math.sqrt(2)) -> Select:
    """Q + c sqrt(ln N / n) (Kocsis and Szepesvari 2006, "Bandit based Monte-Carlo planning", UCB1 of Auer et
    al. 2002 at every node): N visits of the parent, n of the child. For values from 0 to 1."""
    c = check_float("exploration", exploration, 0.0)

    def rule(mean: float, visits: int, parent_visits: int, prior: float) -> float:
        return mean + c * math.sqrt(math.log(parent_visits) / visits) if visits else math.inf

    return rule


def puct(exploration: float = 1.0) -> Select:
    """Q + c P sqrt(N) / (1 + n) (Silver et al. 2017, "Mastering the game of Go without human knowledge",
    after Rosin 2011): P is the child's prior among its siblings."""
    c = check_float("exploration", exploration, 0.0)

    def rule(mean: float, visits: int, parent_visits: int, prior: float) -> float:
        return mean + c * prior * math.sqrt(parent_visits) / (1 + visits)

    return rule


@dataclass(slots=True)
class _Place:
    """A branch in the search's tree. awaited: visits by selections whose results have not been told."""

    branch: Branch
    parent: _Place | None
    children: list[_Place] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0
    prior: float = 1.0
    awaited: int = 0
    closed: bool = False
    busy: bool = False


class Mcts:
    """Monte Carlo tree search. Selection descends from the root to a leaf by `select` (uct() or puct()).
    Expansion draws `expand` steps from it. Evaluation asks the verifier about each of them, or, with rollout,
    about a whole answer drawn from each (an unfinished one counts `unfinished`, as does a step that nothing
    can follow). Backup adds the value to the step and to all above it. Each evaluation is one simulation, of
    at most `simulations`.

    Values should be from 0 to 1. Priors: a step's mean log-probability per token, softmax among its siblings
    with `prior_temperature`. batch: leaves selected before their results are known; each selection
    immediately counts as a visit of value 0 (the virtual loss of Chaslot et al. 2008, "Parallel Monte-Carlo
    tree search"), so that they differ. Finished and cut branches are closed, and so is a branch all of whose
    children are, because visiting them again would add nothing. The search ends when the root is closed.
    Finished branches are ranked by value, with `answer` by the weighted vote.
    """

    def __init__(
        self,
        simulations: int = 64,
        *,
        expand: int = 4,
        select: Select | None = None,
        rollout: bool = False,
        unfinished: float = 0.0,
        prior_temperature: float = 1.0,
        batch: int = 1,
        answer: Answer | None = None,
    ) -> None:
        self._simulations = check_int("simulations", simulations, 1)
        self._expand = check_int("expand", expand, 1, MAX_COUNT)
        if select is not None and not callable(select):
            raise invalid("select", f"{shown(select)} is not callable", "uct(...), puct(...) or a callable")
        self._select: Select = uct() if select is None else select
        self._rollout = check_bool("rollout", rollout)
        self._unfinished = check_float("unfinished", unfinished)
        self._prior_temperature = check_float("prior_temperature", prior_temperature, 0.0, open_low=True)
        self._batch = check_int("batch", batch, 1, MAX_COUNT)
        self._pool = Pool(answer)
        self._places: dict[int, _Place] = {}
        self._rollouts: list[int] = []
        self._rolling = False
        self._done = 0

    def begin(self, root: Branch) -> None:
        """Policy.begin."""
        self._pool.clear()
        self._places = {root.id: _Place(root, None, closed=root.state != "open")}
        self._root = self._places[root.id]
        self._rollouts, self._rolling, self._done = [], False, 0

    def ask(self) -> Work:
        """Policy.ask."""
        if self._rollouts:
            self._rolling = True
            how = How(whole=True)
            return Work(tuple(Expand(child, 1, how, "finished") for child in self._rollouts))
        left = self._simulations - self._done
        expand: list[Expand] = []
        while len(expand) < self._batch and left > 0:
            leaf = self._leaf()
            if leaf is None:
                break
            n = min(self._expand, left)
            left -= n
            expand.append(Expand(leaf.branch.id, n, score="finished" if self._rollout else "all"))
        return Work(tuple(expand))

    def tell(self, results: Sequence[Expanded]) -> None:
        """Policy.tell."""
        self._pool.add(children_of(results))
        if self._rolling:
            self._rolling, self._rollouts = False, []
            for result in results:
                place = self._places[result.expand.node]
                for end in result.children:
                    self._back_up(place, self._worth(end))
                if result.is_stuck:
                    self._back_up(place, self._unfinished)
                    self._settle(place, "closed")
            return
        for place in self._places.values():
            place.awaited, place.busy = 0, False
        for result in results:
            self._grow(self._places[result.expand.node], result.children)

    def ranked(self) -> Sequence[Branch]:
        """Policy.ranked."""
        return self._pool.ranked()

    def votes(self) -> list[Vote]:
        """The answers, heaviest first."""
        return self._pool.votes()

    @property
    def visits(self) -> Mapping[int, int]:
        """Of each branch in the tree: its own evaluation, if it had one, and its children's visits."""
        return {number: place.visits for number, place in self._places.items()}

    @property
    def means(self) -> Mapping[int, float]:
        """The mean value of each branch that was visited."""
        return {n: place.total / place.visits for n, place in self._places.items() if place.visits}

    def most_visited(self) -> list[Branch]:
        """From the root down, by the most visited child each time: the steps the search trusts most."""
        place, path = self._root, [self._root.branch]
        while place.children:
            place = max(place.children, key=lambda child: child.visits)
            path.append(place.branch)
        return path

    # -- selection --------------------------------------------------------------------------------

    def _leaf(self) -> _Place | None:
        """The next one to expand, marked as selected; None if there is none left."""
        place = self._root
        if place.closed or place.busy:
            return None
        while place.children:
            visits = max(1, place.visits + place.awaited)
            free = [child for child in place.children if not child.closed and not child.busy]
            place = max(free, key=lambda child: self._worth_following(child, visits))
        self._settle(place, "busy")
        step: _Place | None = place
        while step is not None:
            step.awaited += 1
            step = step.parent
        return place

    def _worth_following(self, child: _Place, parent_visits: int) -> float:
        visits = child.visits + child.awaited
        mean = child.total / visits if visits else 0.0
        return self._select(mean, visits, parent_visits, child.prior)

    @staticmethod
    def _settle(place: _Place, mark: str) -> None:
        """Marks a place, and every ancestor none of whose children is free any more."""
        setattr(place, mark, True)
        parent = place.parent
        while parent is not None and all(child.closed or child.busy for child in parent.children):
            setattr(parent, mark, True)
            parent = parent.parent

    # -- expansion and backup ---------------------------------------------------------------------

    def _grow(self, place: _Place, children: Sequence[Branch]) -> None:
        added = [_Place(child, place, closed=child.state != "open") for child in children]
        place.children.extend(added)
        for child, prior in zip(added, self._priors(children), strict=True):
            child.prior = prior
            self._places[child.branch.id] = child
            if self._rollout and child.branch.state == "open":
                self._rollouts.append(child.branch.id)
            else:
                self._back_up(child, self._worth(child.branch))
        if all(child.closed for child in added):
            self._settle(place, "closed")

    def _priors(self, children: Sequence[Branch]) -> list[float]:
        logits = [
            child.logprob / max(1, len(child.token_ids)) / self._prior_temperature for child in children
        ]
        weights = [math.exp(logit - max(logits)) for logit in logits]
        return [weight / math.fsum(weights) for weight in weights]

    def _worth(self, branch: Branch) -> float:
        if self._rollout and not branch.is_finished:
            return self._unfinished
        if not branch.is_scored:
            raise invalid("verifier", "has said nothing of a branch", "a verifier")
        return value(branch)

    def _back_up(self, place: _Place, worth: float) -> None:
        self._done += 1
        step: _Place | None = place
        while step is not None:
            step.visits += 1
            step.total += worth
            step = step.parent
