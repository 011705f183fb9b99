"""Sides that run in turn: each run of another stands beside a run of ours just before it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from benchmarks.peers.workloads import Workload

WARM_TOKENS = 2
Result = dict[str, Any]


class Named(Protocol):
    """A side, as far as it matters here."""

    peer: str
    versions: dict[str, str]


S = TypeVar("S", bound=Named)


class Pairs:
    """What is known of one peer at one workload. answers: ours and the peer's, of runs that went well."""

    def __init__(self, side: Named) -> None:
        self.peer, self.versions = side.peer, side.versions
        self.answers: list[tuple[Result, Result]] = []
        self.why: Result = {}

    def tried(self, answer: Result) -> Result:
        """The answer, noted where it is a reason not to go on."""
        self.why = {key: answer[key] for key in ("refused", "failed") if key in answer}
        return answer

    def result(self, work: Workload, measured: Callable[[list[tuple[Result, Result]]], Result]) -> Result:
        """What a record says: whose, and why there is nothing, or what `measured` makes of the pairs."""
        found: Result = {"workload": work.name, "peer": self.peer, "peer_versions": self.versions}
        if self.why:
            return {**found, **self.why}
        return {**found, **measured(self.answers), "runs": len(self.answers)}


def in_turn(
    ask: Callable[[S, int], Result],
    tokens: int,
    ours: S,
    others: Sequence[S],
    runs: int,
    done: Callable[[Pairs], None],
) -> None:
    """All warm up with a few tokens, then take turns (A B C A B C ...). `done` is called with the pairs of
    each of the others of which there is something to say; also when it is interrupted, with the pairs that
    are there. Raises RuntimeError where our own side fails."""
    pairs = [(side, Pairs(side)) for side in others]

    def mine(count: int) -> Result:
        answer = ask(ours, count)
        if "seconds" not in answer:
            raise RuntimeError(f"{ours.peer}: {answer}")
        return answer

    try:
        mine(WARM_TOKENS)
        for side, pair in pairs:
            pair.tried(ask(side, WARM_TOKENS))
        for _ in range(runs):
            able = [(side, pair) for side, pair in pairs if not pair.why]
            own = mine(tokens) if able else {}
            for side, pair in able:
                answer = pair.tried(ask(side, tokens))
                if not pair.why:
                    pair.answers.append((own, answer))
    finally:
        for _, pair in pairs:
            if pair.why or pair.answers:
                done(pair)


def ratios(values: Sequence[float]) -> Result:
    """The median of the pairs' ratios, with the smallest and the largest."""
    return {"ratio": statistics.median(values), "ratio_min": min(values), "ratio_max": max(values)}


def unable(result: Result) -> str | None:
    """In words why there is nothing measured; None where there is."""
    if "refused" in result:
        return f"not possible: {result['refused']}"
    return f"failed: {result['failed']}" if "failed" in result else None
