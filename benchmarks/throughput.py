"""Tokens per second, ours over others': same model, dtype, threads, prompts, tokens.

    python -m benchmarks.throughput [--peer NAME ...] [--model M] [--dtype D] [--workload NAME ...] [--runs N]
                                    [--tokens N] [--limit S] [--record FILE]

Each side has a process of its own that loads the model once. For each workload all warm up with a few
tokens, then run in turn (A B C A B C ...); while one runs the others are stopped. Reported is the median
of the pairwise ratios, with the smallest and the largest. Every candidate generates exactly --tokens
tokens: EOS is ignored on all sides. Prefill, scheduling and detokenising are included. What a peer cannot
do, and what went wrong, is a result too. A result is recorded when its workload is done, or with the pairs
there are when the run is interrupted. Peers that need an environment of their own get it by
`python -m benchmarks.peers.make`. A peer can be tried with another option of its class beside the usual one:
`--peer ctranslate2 ctranslate2:batch=4`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from benchmarks.pairs import Pairs, in_turn, ratios, unable
from benchmarks.peers.started import add_options, compare_all
from benchmarks.peers.workloads import WORKLOADS, Workload

Result = dict[str, Any]


class Runs(Protocol):
    """A side, as `compare` needs it."""

    peer: str
    versions: dict[str, str]

    def run(self, work: Workload, tokens: int) -> Result: ...


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
        return side.run(work, count)

    def told(pair: Pairs) -> None:
        goal = work.goal if pair.peer == "transformers" else None
        done(pair.result(work, lambda answers: {**speeds(answers), "goal": goal}))

    in_turn(ask, tokens, ours, others, runs, told)


def speeds(answers: list[tuple[Result, Result]]) -> Result:
    """Tokens a second, and ours over the peer's pair by pair."""
    mine, theirs = zip(*((speed(own), speed(other)) for own, other in answers), strict=True)
    return {
        **ratios([a / b for a, b in zip(mine, theirs, strict=True)]),
        "tokens_per_second": statistics.median(mine),
        "peer_tokens_per_second": statistics.median(theirs),
    }


def speed(answer: Result) -> float:
    """Tokens a second."""
    return float(answer["tokens"] / answer["seconds"])


def said(result: Result) -> str:
    """A line of it."""
    head = f"{result['workload']:14s} {result['peer']:22s}"
    if why := unable(result):
        return f"{head} {why}"
    goal = "" if result["goal"] is None else f", goal {result['goal']:g}x"
    return f"{head} {result['ratio']:5.2f}x ({result['ratio_min']:.2f} to {result['ratio_max']:.2f}){goal}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_options(parser, WORKLOADS)
    args = parser.parse_args()
    compare_all("throughput", WORKLOADS, args, compare, said)


if __name__ == "__main__":
    main()
