"""Algorithms of the package treequest, unmodified, on our nodes."""

from __future__ import annotations

import contextlib
import importlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from forkdecode.checks import check_int, shown
from forkdecode.errors import invalid
from forkdecode.search.branch import Branch
from forkdecode.search.pool import Answer, Pool, Vote
from forkdecode.search.work import Expand, Expanded, How, Work, children_of
from forkdecode.types import MAX_COUNT


class TreeQuest:
    """A search with a treequest algorithm (Inoue et al. 2025, "Wider or deeper? Scaling LLM inference-time
    compute with adaptive branching tree search"): AB-MCTS by default, whose Thompson sampling decides at each
    node whether to draw a new child or to continue one that it has.

    algorithm: any treequest.Algorithm (ABMCTSA(), ABMCTSM(), StandardMCTS(), ...). actions: the names from
    which it chooses and how each makes a child; by default {"step": How()}. With How(whole=True, after=...) a
    finished answer is refined (the root is not), which is how the paper goes deeper. trials: the number of
    children in all; batch: how many are requested at once. Scores must be from 0 to 1. A trial on a branch
    that cannot be continued is answered with that branch and its score, as a finished game is. seed: the
    algorithms draw from numpy's and Python's global generators, which are set for their calls and restored
    afterwards. state: the algorithm's own, for treequest.top_k and the like; its node states are Branch
    objects.

    Needs the extra `search`; raises ModuleNotFoundError without it.
    """

    def __init__(
        self,
        algorithm: Any = None,
        *,
        actions: Mapping[str, How] | None = None,
        trials: int = 64,
        batch: int = 1,
        seed: int = 0,
        answer: Answer | None = None,
    ) -> None:
        self._algorithm = importlib.import_module("treequest").ABMCTSA() if algorithm is None else algorithm
        self._actions = _check_actions({"step": How()} if actions is None else actions)
        self._trials = check_int("trials", trials, 1)
        self._batch = check_int("batch", batch, 1, MAX_COUNT)
        self._seed = check_int("seed", seed, 0, 2**32 - 1)
        self._pool = Pool(answer)
        self.state: Any = None
        self._root: Any = None
        self._asked: list[tuple[str, Branch]] = []
        self._left = 0

    def begin(self, root: Branch) -> None:
        """Policy.begin."""
        self._pool.clear()
        self._root, self._asked, self._left = root, [], self._trials
        self._random = _Randoms(self._seed)
        self.state = self._algorithm.init_tree()

    def ask(self) -> Work:
        """Policy.ask."""
        expand: list[Expand] = []
        while not expand and self._left > 0:
            size = min(self._batch, self._left)
            with self._random.in_use():
                self.state, trials = self._algorithm.ask_batch(self.state, size, list(self._actions))
            if not trials:
                break
            self._left -= len(trials)
            for trial in trials:
                branch: Branch = trial.parent_state or self._root
                how = self._actions[trial.action]
                if branch is self._root:
                    how = replace(how, after="")  # there is nothing to refine yet
                if branch.state == "open" or (branch.is_finished and how.after):
                    expand.append(Expand(branch.id, 1, how))
                    self._asked.append((trial.trial_id, branch))
                else:
                    self._answer(trial.trial_id, branch)
        return Work(tuple(expand))

    def tell(self, results: Sequence[Expanded]) -> None:
        """Policy.tell."""
        asked, self._asked = self._asked, []
        self._pool.add(children_of(results))
        for (trial, branch), result in zip(asked, results, strict=True):
            for child in result.children:
                self._answer(trial, child)
            if not result.children and branch is not self._root:  # which has no score
                self._answer(trial, branch)

    def _answer(self, trial: str, branch: Branch) -> None:
        score = branch.score
        if score is None or not 0.0 <= score <= 1.0:
            raise invalid("verifier", f"says {shown(score)} of a branch", "scores from 0 to 1 for treequest")
        with self._random.in_use():
            self.state = self._algorithm.tell(self.state, trial, (branch, score))

    def ranked(self) -> Sequence[Branch]:
        """Policy.ranked."""
        return self._pool.ranked()

    def votes(self) -> list[Vote]:
        """The answers, heaviest first."""
        return self._pool.votes()


def _check_actions(actions: Mapping[str, How]) -> dict[str, How]:
    allowed = "a mapping of names to How(...)"
    if not isinstance(actions, Mapping) or not actions:
        raise invalid("actions", f"{shown(actions)} names none", allowed)
    for name, how in actions.items():
        if not isinstance(name, str) or not isinstance(how, How):
            raise invalid("actions", f"{shown(name)}: {shown(how)} is wrong", allowed)
    return dict(actions)


class _Randoms:
    """States of the global generators that are one search's own."""

    def __init__(self, seed: int) -> None:
        self._numpy = importlib.import_module("numpy").random
        self._states = (self._numpy.RandomState(seed).get_state(), random.Random(seed).getstate())

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Sets them, and puts the caller's back."""
        before = (self._numpy.get_state(), random.getstate())
        self._numpy.set_state(self._states[0])
        random.setstate(self._states[1])
        try:
            yield
        finally:
            self._states = (self._numpy.get_state(), random.getstate())
            self._numpy.set_state(before[0])
            random.setstate(before[1])
