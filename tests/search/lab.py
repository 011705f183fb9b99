"""Carries out what policies ask for, without a driver, on trees of known rewards."""

from __future__ import annotations

import random

from forkdecode.search import Branch, Expanded, Policy, Work

ROOT = Branch(0, None, 0, "open")


class Lab:
    """Carries out a policy's work with branches drawn at random, and keeps all of them."""

    def __init__(self, seed: int, *, ends: float = 0.3, cuts: float = 0.1) -> None:
        self._draw = random.Random(seed)
        self._ends, self._cuts = ends, cuts
        self.branches = {0: ROOT}
        self.rounds: list[tuple[Work, list[Expanded]]] = []

    def round(self, policy: Policy) -> bool:
        """One ask and tell; False at the end."""
        work = policy.ask()
        if not work.expand:
            self.rounds.append((work, []))
            return False
        results = [
            Expanded(e, tuple(self._child(e.node, e.how.whole, e.score) for _ in range(e.n)))
            for e in work.expand
        ]
        self.rounds.append((work, results))
        policy.tell(results)
        return True

    def run(self, policy: Policy, most: int = 1000) -> None:
        """To the end."""
        policy.begin(ROOT)
        for _ in range(most):
            if not self.round(policy):
                return
        raise AssertionError("it does not end")

    def _child(self, parent: int, whole: bool, score: str) -> Branch:
        above, draw = self.branches[parent], self._draw
        assert above.state == "open"
        sort = draw.random()
        ends = self._ends if not whole else 0.8
        state = "finished" if sort < ends else "cut" if sort < ends + self._cuts or whole else "open"
        scored = score == "all" or (score == "finished" and state == "finished")
        scores = (*above.scores, draw.random()) if scored else above.scores
        number = len(self.branches)
        text = draw.choice("xyz")
        child = Branch(
            number,
            parent,
            above.depth + 1,
            state,  # type: ignore[arg-type]
            text,
            above.completion + text,
            token_ids=(1,) * draw.randint(1, 4),
            logprob=-draw.random() * 4,
            scores=scores,
            is_scored=scored,
        )
        self.branches[number] = child
        return child

    @property
    def finished(self) -> list[Branch]:
        return [branch for branch in self.branches.values() if branch.is_finished]


def last(text: str) -> str | None:
    return text[-1] if text[-1] != "z" else None
