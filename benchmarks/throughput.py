"""Tokens per second, ours over others': same model, dtype, threads, prompts, tokens.

    python -m benchmarks.throughput [--peer NAME ...] [--model M] [--dtype D] [--workload NAME ...] [--runs N]
                                    [--record FILE]

Each side has a process of its own that loads the model once and then waits. For each workload all
warm up, then run in turn (A B C A B C ...); while one runs the others sleep. Reported is the median of
the pairwise ratios, with the smallest and the largest. Every candidate generates exactly --tokens
tokens: EOS is ignored on all sides. Prefill, scheduling and detokenising are included. Peers that need
an environment of their own get it by `python -m benchmarks.peers.make`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.peers.make import FOLDER, python_of
from benchmarks.peers.workloads import WORKLOADS, Workload
from benchmarks.record import record
from forkdecode.model.default_model import SMOLLM2, ensure
from forkdecode.model.loader import resolve_dtype

OURS = "forkdecode"
PEERS = ("transformers", "transformers_batching", "ctranslate2", "vllm", "vllm_cached")


class Side:
    """A peer's process."""

    def __init__(self, peer: str, model: str, dtype: str, args: argparse.Namespace) -> None:
        command = [python_of(peer, args.peers), "-m", "benchmarks.peers.serve", peer, model, dtype]
        command += [str(args.threads), str(args.tokens)]
        self.peer = peer
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},
        )
        self.versions: dict[str, str] = self._answer()["versions"]

    def run(self, work: Workload) -> dict[str, Any]:
        """seconds and tokens, or why it was refused."""
        assert self.process.stdin is not None
        print(work.name, file=self.process.stdin, flush=True)
        return self._answer()

    def speed(self, work: Workload) -> float:
        """Tokens a second."""
        answer = self.run(work)
        return float(answer["tokens"] / answer["seconds"])

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.peer} died")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(work: Workload, ours: Side, others: list[Side], runs: int) -> list[dict[str, Any]]:
    """One result for each of the others, or why it has none."""
    ours.run(work)
    refusals = {side.peer: side.run(work).get("refused") for side in others}
    able = [side for side in others if refusals[side.peer] is None]
    rounds = [(ours.speed(work), [side.speed(work) for side in able]) for _ in range(runs)]
    found: list[dict[str, Any]] = [
        {"workload": work.name, "peer": peer, "refused": why} for peer, why in refusals.items() if why
    ]
    for i, side in enumerate(able):
        ratios = sorted(mine / theirs[i] for mine, theirs in rounds)
        found.append(
            {
                "workload": work.name,
                "peer": side.peer,
                "ratio": statistics.median(ratios),
                "ratio_min": ratios[0],
                "ratio_max": ratios[-1],
                "goal": work.goal if side.peer == "transformers" else None,
                "tokens_per_second": statistics.median(mine for mine, _ in rounds),
                "peer_tokens_per_second": statistics.median(theirs[i] for _, theirs in rounds),
                "runs": runs,
                "peer_versions": side.versions,
            }
        )
    return found


def said(result: dict[str, Any]) -> str:
    """A line of it."""
    head = f"{result['workload']:14s} {result['peer']:22s}"
    if "refused" in result:
        return f"{head} not possible: {result['refused']}"
    goal = "" if result["goal"] is None else f", goal {result['goal']:g}x"
    return f"{head} {result['ratio']:5.2f}x ({result['ratio_min']:.2f} to {result['ratio_max']:.2f}){goal}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peer", nargs="*", choices=PEERS, default=["transformers"])
    parser.add_argument("--model", help="a folder; the default model if not given")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--workload", nargs="*", choices=[w.name for w in WORKLOADS])
    parser.add_argument("--peers", type=Path, default=FOLDER, help="where the peers' environments are")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    model, dtype = args.model or str(ensure(SMOLLM2)), resolve_dtype(args.dtype)
    ours = Side(OURS, model, dtype, args)
    others = [Side(peer, model, dtype, args) for peer in args.peer]
    for work in WORKLOADS:
        if args.workload and work.name not in args.workload:
            continue
        for result in compare(work, ours, others, args.runs):
            settings = {"dtype": dtype, "threads": args.threads, "tokens": args.tokens}
            record("throughput", {**settings, **result}, args.record)
            print(said(result), flush=True)
    for side in (ours, *others):
        side.close()


if __name__ == "__main__":
    main()
