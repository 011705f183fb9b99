"""Latency of one request with nothing beside it, ours and others': same model, dtype, threads, prompt.

    python -m benchmarks.latency [--peer NAME ...] [--model M] [--dtype D] [--workload NAME ...] [--runs N]
                                 [--tokens N] [--limit S] [--record FILE]

The sides are those of benchmarks.throughput and run in turn as there. A greedy request is read as it is
decoded, on each side by the way that it has for that. Told are the time from the request to its first token,
which is that of its prompt; the time of each further token, the mean of a run; and the time until the last.
Tokens count when they are in the caller's hands with their text. A search with beams is final when it ends:
of it the whole time is told, as throughput takes it. Reported are medians, and the median of the pairwise
ratios, the peer's time over ours, with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from benchmarks.pairs import in_turn, ratios, unable
from benchmarks.peers.arrivals import MEASURES
from benchmarks.peers.started import add_options, compare_all
from benchmarks.peers.workloads import ALONE, Workload

Result = dict[str, Any]


class Runs(Protocol):
    """A side, as `compare` needs it."""

    peer: str
    versions: dict[str, str]

    def run(self, work: Workload, tokens: int) -> Result: ...

    def stream(self, work: Workload, tokens: int) -> Result: ...


def compare(
    work: Workload,
    tokens: int,
    ours: Runs,
    others: Sequence[Runs],
    runs: int,
    done: Callable[[Result], None],
) -> None:
    """Calls `done` with a result for each of the others, as `in_turn` does, and raises as it does."""

    def ask(side: Runs, count: int) -> Result:
        return side.stream(work, count) if work.kind == "greedy" else side.run(work, count)

    in_turn(ask, tokens, ours, others, runs, lambda pair: done(pair.result(work, times)))


def times(answers: list[tuple[Result, Result]]) -> Result:
    """Of each measure seconds, and the peer's over ours pair by pair."""
    return {name: _times(answers, name) for name in MEASURES if name in answers[0][0]}


def _times(answers: list[tuple[Result, Result]], name: str) -> Result:
    mine, theirs = [own[name] for own, _ in answers], [other[name] for _, other in answers]
    found = ratios([b / a for a, b in zip(mine, theirs, strict=True)])
    return {**found, "ours": statistics.median(mine), "peer": statistics.median(theirs)}


def said(result: Result) -> str:
    """A line of it."""
    head = f"{result['workload']:14s} {result['peer']:22s}"
    if why := unable(result):
        return f"{head} {why}"
    parts = []
    for name in (name for name in MEASURES if name in result):
        told = result[name]
        span = f"{told['ratio_min']:.2f} to {told['ratio_max']:.2f}"
        parts.append(f"{name} {told['ratio']:.2f}x ({span}; {1e3 * told['ours']:.1f} ms)")
    return f"{head} {', '.join(parts)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_options(parser, ALONE)
    args = parser.parse_args()
    if args.tokens < 2:
        parser.error("--tokens must be at least 2: the time between tokens needs two of them")
    compare_all("latency", ALONE, args, compare, said)


if __name__ == "__main__":
    main()
