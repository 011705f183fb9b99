"""Tokens per second against transformers' `generate`: same model, dtype, threads, prompts, tokens.

    python -m benchmarks.throughput [--model M] [--dtype D] [--workload NAME ...] [--runs N] [--record FILE]

Each side has a process of its own that loads the model once and then waits. For each workload both
warm up, then run in turn (A B A B ...); while one runs the other sleeps. Reported is the median of
the pairwise ratios, with the smallest and the largest. Every candidate generates exactly --tokens
tokens: EOS is ignored on both sides. Prefill, scheduling and detokenising are included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.prompts import passage
from benchmarks.record import record


@dataclass(frozen=True)
class Workload:
    """prompts: their lengths in tokens. strategy: keyword arguments of both sides, by kind."""

    name: str
    lengths: tuple[int, ...]
    kind: str
    rows: int
    goal: float


MIXED = tuple(40 + 160 * i // 15 for i in range(16))
WORKLOADS = (
    Workload("beam4x16", MIXED, "beam", 4, 4.0),
    Workload("beam8x1000", (1000,), "beam", 8, 7.0),
    Workload("sample8x16", MIXED, "sample", 8, 6.0),
    Workload("sample32x1000", (1000,), "sample", 32, 20.0),
    Workload("greedyx16", MIXED, "greedy", 1, 2.8),
)
TEMPERATURE, TOP_P = 0.8, 0.95


# -- the two sides, each in its own process -------------------------------------------------------


class Ours:
    def __init__(self, model: str, dtype: str, threads: int) -> None:
        from forkdecode import LLM

        # The same prompts run again and again: a prefix cache would skip their prefill.
        self.llm = LLM(model, dtype=dtype, threads=threads, prefix_cache=False)

    def prompts(self, lengths: tuple[int, ...]) -> list[list[int]]:
        return [passage(self.llm.tokenizer, n, offset=i) for i, n in enumerate(lengths)]

    def run(self, work: Workload, tokens: int) -> int:
        from forkdecode import Beam, Greedy, Sample

        strategy: Any = {
            "beam": lambda: Beam(work.rows, num_return_sequences=1),
            "sample": lambda: Sample(work.rows, temperature=TEMPERATURE, top_p=TOP_P, seed=1),
            "greedy": Greedy,
        }[work.kind]()
        results = self.llm.decode(self.prompts(work.lengths), strategy, max_tokens=tokens, ignore_eos=True)
        return sum(r.usage.generated_tokens for r in results)


class Transformers:
    def __init__(self, model: str, dtype: str, threads: int) -> None:
        import torch

        from forkdecode.model.loader import load

        torch.set_num_threads(threads)
        self.torch = torch
        self.loaded = load(model, dtype)
        self.loaded.model.generation_config.eos_token_id = None

    def run(self, work: Workload, tokens: int) -> int:
        torch, model = self.torch, self.loaded.model
        ids = [passage(self.loaded.tokenizer, n, offset=i) for i, n in enumerate(work.lengths)]
        longest = max(work.lengths)
        padded = torch.tensor([[0] * (longest - len(p)) + p for p in ids])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in ids])
        options: dict[str, Any] = {
            "beam": {"num_beams": work.rows, "do_sample": False},
            "sample": {
                "num_return_sequences": work.rows,
                "do_sample": True,
                "temperature": TEMPERATURE,
                "top_p": TOP_P,
                "top_k": 0,
            },
            "greedy": {"do_sample": False},
        }[work.kind]
        torch.manual_seed(1)
        with torch.inference_mode():
            out = model.generate(
                padded, attention_mask=mask, max_new_tokens=tokens, pad_token_id=0, **options
            )
        assert out.shape[1] == longest + tokens
        return len(ids) * work.rows * tokens


SIDES = {"forkdecode": Ours, "transformers": Transformers}


def serve(side: str, args: argparse.Namespace) -> None:
    """Answers each workload name on stdin with one JSON line."""
    runner = SIDES[side](args.model, args.dtype, args.threads)
    by_name = {w.name: w for w in WORKLOADS}
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        work = by_name[line.strip()]
        begin = time.perf_counter()
        tokens = runner.run(work, args.tokens)
        print(json.dumps({"seconds": time.perf_counter() - begin, "tokens": tokens}), flush=True)


# -- the pairing ----------------------------------------------------------------------------------


class Side:
    def __init__(self, name: str, args: argparse.Namespace) -> None:
        command = [sys.executable, "-m", "benchmarks.throughput", "--serve", name, "--model", args.model]
        command += ["--dtype", args.dtype, "--threads", str(args.threads), "--tokens", str(args.tokens)]
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._answer()

    def run(self, work: Workload) -> dict[str, float]:
        assert self.process.stdin is not None
        print(work.name, file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a side died")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(work: Workload, ours: Side, theirs: Side, runs: int) -> dict[str, Any]:
    ours.run(work)
    theirs.run(work)
    pairs = [(ours.run(work), theirs.run(work)) for _ in range(runs)]
    speed = [(a["tokens"] / a["seconds"], b["tokens"] / b["seconds"]) for a, b in pairs]
    ratios = sorted(a / b for a, b in speed)
    return {
        "workload": work.name,
        "ratio": statistics.median(ratios),
        "ratio_min": ratios[0],
        "ratio_max": ratios[-1],
        "goal": work.goal,
        "tokens_per_second": statistics.median(a for a, _ in speed),
        "tokens_per_second_transformers": statistics.median(b for _, b in speed),
        "runs": runs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--workload", nargs="*", choices=[w.name for w in WORKLOADS])
    parser.add_argument("--record", type=Path)
    parser.add_argument("--serve", choices=SIDES)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args)
        return
    ours, theirs = Side("forkdecode", args), Side("transformers", args)
    for work in WORKLOADS:
        if args.workload and work.name not in args.workload:
            continue
        found = compare(work, ours, theirs, args.runs)
        settings = {"dtype": args.dtype, "threads": args.threads, "tokens": args.tokens}
        record("throughput", {**settings, **found}, args.record)
        print(
            f"{work.name:14s} {found['ratio']:5.2f}x ({found['ratio_min']:.2f} to {found['ratio_max']:.2f}), "
            f"goal {work.goal:g}x",
            flush=True,
        )
    ours.close()
    theirs.close()


if __name__ == "__main__":
    main()
