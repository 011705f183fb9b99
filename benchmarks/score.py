"""Log-likelihoods of N continuations of one prompt against transformers: same model, dtype, threads.

    python -m benchmarks.score [--model M] [--dtype D] [--prompt 500] [--continuations 16] [--tokens 32]
                               [--runs N] [--record FILE]

Two baselines: "forward", one batched forward pass over prompt and continuation of every row, logits of
the continuations alone; and "cached", what a careful user writes: the prompt once, its key/value cache
repeated for every row, then one batched pass over the continuations. After a warm-up the three run in
turn; ratios are of times, pairwise, by their median, and of the process's CPU times besides, which other
programs on the machine disturb less. Our prefix cache is off, or the prompt would be
free from the second run on. All three must agree within 1e-3 on every token (float32).
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

from benchmarks.prompts import passage
from benchmarks.record import record
from forkdecode import LLM
from forkdecode.model.loader import load

Scores = list[list[float]]
TOLERANCE = 1e-3
BASELINES = ("forward", "cached")


@torch.inference_mode()
def by_forward(model: Any, prompt: Sequence[int], continuations: Sequence[Sequence[int]]) -> Scores:
    """Every row computes the whole prompt."""
    rows = torch.tensor([[*prompt, *c] for c in continuations])
    logits = model(rows, logits_to_keep=len(continuations[0]) + 1, use_cache=False).logits[:, :-1]
    return picked(logits, rows[:, len(prompt) :])


@torch.inference_mode()
def by_cache(model: Any, prompt: Sequence[int], continuations: Sequence[Sequence[int]]) -> Scores:
    """The prompt is computed once, and its cache copied for each row."""
    first = model(torch.tensor([prompt]), logits_to_keep=1, use_cache=True)
    cache, rows = first.past_key_values, torch.tensor(continuations)
    cache.batch_repeat_interleave(len(rows))
    logits = first.logits.expand(len(rows), 1, -1)
    if rows.shape[1] > 1:
        rest = model(rows[:, :-1], past_key_values=cache, use_cache=True).logits
        logits = torch.cat([logits, rest], 1)
    return picked(logits, rows)


def picked(logits: torch.Tensor, tokens: torch.Tensor) -> Scores:
    scores: Scores = logits.float().log_softmax(-1).gather(2, tokens[..., None])[..., 0].tolist()
    return scores


def timed(run: Callable[[], Scores]) -> tuple[float, float]:
    """Seconds, and CPU seconds of all threads."""
    begin, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - begin, time.process_time() - cpu


def largest_gap(a: Scores, b: Scores) -> float:
    return float((torch.tensor(a) - torch.tensor(b)).abs().max())


def measure(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(args.threads)
    loaded = load(args.model, args.dtype)
    prompt = passage(loaded.tokenizer, args.prompt)
    text = passage(loaded.tokenizer, args.tokens * args.continuations, offset=1)
    continuations = [text[i * args.tokens : (i + 1) * args.tokens] for i in range(args.continuations)]
    llm = LLM(args.model, dtype=args.dtype, threads=args.threads, prefix_cache=False)

    def ours() -> Scores:
        result = llm.score(prompt, continuations)
        return [[token.logprob for token in c.logprobs] for c in result.continuations]

    ways: dict[str, Callable[[], Scores]] = {
        "ours": ours,
        "forward": lambda: by_forward(loaded.model, prompt, continuations),
        "cached": lambda: by_cache(loaded.model, prompt, continuations),
    }
    want = ways["cached"]()
    gaps = {name: largest_gap(run(), want) for name, run in ways.items()}
    rounds = [{name: timed(run) for name, run in ways.items()} for _ in range(args.runs)]
    llm.close()
    if args.dtype == "float32" and max(gaps.values()) > TOLERANCE:
        raise SystemExit(f"the sides don't agree: {gaps}")
    ratios = {name: sorted(r[name][0] / r["ours"][0] for r in rounds) for name in BASELINES}
    cpu = {name: statistics.median(r[name][1] / r["ours"][1] for r in rounds) for name in BASELINES}
    return {
        "model": Path(args.model).name,
        "prompt": args.prompt,
        "continuations": args.continuations,
        "tokens": args.tokens,
        "dtype": args.dtype,
        "threads": args.threads,
        "runs": args.runs,
        "seconds": {name: statistics.median(r[name][0] for r in rounds) for name in ways},
        "ratio": {name: statistics.median(found) for name, found in ratios.items()},
        "ratio_range": {name: [found[0], found[-1]] for name, found in ratios.items()},
        "cpu_ratio": cpu,
        "largest_gap": max(gaps.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompt", type=int, default=500, help="tokens of the prompt")
    parser.add_argument("--continuations", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32, help="tokens of each continuation")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    found = measure(args)
    record("score", found, args.record)
    for name, ratio in found["ratio"].items():
        low, high = found["ratio_range"][name]
        cpu = found["cpu_ratio"][name]
        print(f"{name:8s} {ratio:5.2f}x ({low:.2f} to {high:.2f}), CPU time {cpu:.2f}x", flush=True)


if __name__ == "__main__":
    main()
