"""Tokens per second, ours over others': same model, dtype, threads, prompts, tokens.

    python -m benchmarks.throughput [--peer NAME ...] [--model M] [--dtype D] [--workload NAME ...] [--runs N]
                                    [--tokens N] [--limit S] [--record FILE]

Each side has a process of its own that loads the model once. For each workload all warm up with a few
tokens, then run in turn (A B C A B C ...); while one runs the others are stopped. Reported is the median
of the pairwise ratios, with the smallest and the largest. Every candidate generates exactly --tokens
tokens: EOS is ignored on all sides. Prefill, scheduling and detokenising are included. What a peer cannot
do, and what went wrong, is a result too. A result is recorded when its workload is done, or with the pairs
there are when the run is interrupted. Peers that need an environment of their own get it by
`python -m benchmarks.peers.make`.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from benchmarks.peers.make import FOLDER, python_of
from benchmarks.peers.side import Side
from benchmarks.peers.workloads import SEED, WORKLOADS, Workload
from benchmarks.record import record
from forkdecode.config import DEFAULT_MODEL
from forkdecode.model.default_model import SMOLLM2, ensure
from forkdecode.model.loader import resolve_dtype

OURS = "forkdecode"
PEERS = ("transformers", "transformers_batching", "ctranslate2", "vllm", "vllm_cached")
WARM_TOKENS = 2
Result = dict[str, Any]


class Runs(Protocol):
    """A side, as `compare` needs it."""

    peer: str
    versions: dict[str, str]

    def run(self, work: Workload, tokens: int) -> Result: ...


class Pairs:
    """What is known of one peer at one workload."""

    def __init__(self, side: Runs) -> None:
        self.side = side
        self.speeds: list[tuple[float, float]] = []
        self.why: Result = {}

    def tried(self, answer: Result) -> Result:
        """The answer, noted where it is a reason not to go on."""
        self.why = {key: answer[key] for key in ("refused", "failed") if key in answer}
        return answer

    def result(self, work: Workload) -> Result | None:
        """None while there is nothing to say."""
        found: Result = {"workload": work.name, "peer": self.side.peer, "peer_versions": self.side.versions}
        if self.why:
            return {**found, **self.why}
        if not self.speeds:
            return None
        ratios = sorted(mine / theirs for mine, theirs in self.speeds)
        return {
            **found,
            "ratio": statistics.median(ratios),
            "ratio_min": ratios[0],
            "ratio_max": ratios[-1],
            "goal": work.goal if self.side.peer == "transformers" else None,
            "tokens_per_second": statistics.median(mine for mine, _ in self.speeds),
            "peer_tokens_per_second": statistics.median(theirs for _, theirs in self.speeds),
            "runs": len(self.speeds),
        }


def compare(
    work: Workload,
    tokens: int,
    ours: Runs,
    others: Sequence[Runs],
    runs: int,
    done: Callable[[Result], None],
) -> None:
    """Calls `done` with a result for each of the others; also when it is interrupted, with the pairs that are
    there. Raises RuntimeError where our own side fails."""
    pairs = [Pairs(side) for side in others]
    try:
        speed(ours.run(work, WARM_TOKENS))
        for pair in pairs:
            pair.tried(pair.side.run(work, WARM_TOKENS))
        for _ in range(runs):
            able = [pair for pair in pairs if not pair.why]
            mine = speed(ours.run(work, tokens)) if able else 0.0
            for pair in able:
                answer = pair.tried(pair.side.run(work, tokens))
                if not pair.why:
                    pair.speeds.append((mine, speed(answer)))
    finally:
        for result in filter(None, (pair.result(work) for pair in pairs)):
            done(result)


def speed(answer: Result) -> float:
    """Tokens a second."""
    if "seconds" not in answer:
        raise RuntimeError(f"{OURS}: {answer}")
    return float(answer["tokens"] / answer["seconds"])


def said(result: Result) -> str:
    """A line of it."""
    head = f"{result['workload']:14s} {result['peer']:22s}"
    if "refused" in result:
        return f"{head} not possible: {result['refused']}"
    if "failed" in result:
        return f"{head} failed: {result['failed']}"
    goal = "" if result["goal"] is None else f", goal {result['goal']:g}x"
    return f"{head} {result['ratio']:5.2f}x ({result['ratio_min']:.2f} to {result['ratio_max']:.2f}){goal}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peer", nargs="*", choices=PEERS, default=["transformers"])
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a folder, or the default model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--workload", nargs="*", choices=[w.name for w in WORKLOADS])
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a peer may take for one run")
    parser.add_argument("--peers", type=Path, default=FOLDER, help="where the peers' environments are")
    parser.add_argument("--record", type=Path)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    model = str(ensure(SMOLLM2)) if args.model == DEFAULT_MODEL else args.model
    dtype = resolve_dtype(args.dtype)
    settings = {"dtype": dtype, "threads": args.threads, "tokens": args.tokens, "seed": SEED}

    def done(result: Result) -> None:
        record("throughput", {**settings, **result}, args.record)
        print(said(result), flush=True)

    with ExitStack() as stack:

        def started(peer: str) -> Side:
            command = [python_of(peer, args.peers), "-m", "benchmarks.peers.serve"]
            side = Side(peer, [*command, peer, model, dtype, str(args.threads)], args.limit)
            stack.callback(side.close)
            return side

        ours = started(OURS)
        if ours.ended:
            raise SystemExit(f"{OURS}: {ours.ended}")
        others = [started(peer) for peer in args.peer]
        for work in WORKLOADS:
            if not args.workload or work.name in args.workload:
                compare(work, args.tokens, ours, others, args.runs, done)


if __name__ == "__main__":
    main()
