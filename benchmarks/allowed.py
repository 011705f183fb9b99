"""What it costs to keep to what a constraint allows: masks of logits, and beams over lists of tokens.

    python -m benchmarks.allowed [--rows 512] [--vocab 49152] [--listed 10 100 1000 4000] [--threads 1]
        [--record FILE]

For a beam of --rows rows over random logits, milliseconds (medians, in one run, taken in turn):

plain: the best continuations where anything is allowed. listed: where each row has a list of --listed tokens,
read as lists. dense: the same as masked log-probabilities, which is what everything else goes through.
bits: masking by bits, of which every second is set, and of which few are. The results of listed and dense are
compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch

from benchmarks.record import record
from forkdecode.allowed import AllowedLists, Ready
from forkdecode.sampling.beams import topk_listed, topk_plain, topk_processed
from forkdecode.step import ProcessorSpec, SelectionRequest, TopK
from forkdecode_kernels.allowed import keep_bits

ROUNDS = 7


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--vocab", type=int, default=49_152)
    parser.add_argument("--listed", type=int, nargs="+", default=[10, 100, 1000, 4000])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    record("allowed", vars(args) | {"record": None} | measured(args), args.record)


def measured(args: argparse.Namespace) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.standard_normal((args.rows, args.vocab), np.float32))
    base = rng.standard_normal(args.rows).astype(np.float32)
    choice = TopK(2 * args.rows, base, args.rows)
    free = _request(choice, args.rows)
    ways: dict[str, Callable[[], object]] = {
        "plain": lambda: topk_plain(logits, [(free, choice)], threads=args.threads)
    }
    for count in args.listed:
        held = _held(free, rng, args.vocab, count)
        ways[f"listed {count}"] = partial(topk_listed, logits, [(held, choice)], threads=args.threads)
        ways[f"dense {count}"] = partial(topk_processed, logits, [(held, choice)], threads=args.threads)
        _compare(ways[f"listed {count}"](), ways[f"dense {count}"]())
    values, words = logits.clone(), -(-args.vocab // 32)
    half = rng.integers(0, 2**32, (args.rows, words), dtype=np.uint32)
    few = np.zeros_like(half)
    few[:, :4] = 5
    ways["bits, half"] = lambda: keep_bits(values, half, threads=args.threads)
    ways["bits, few"] = lambda: keep_bits(values, few, threads=args.threads)
    took: dict[str, list[float]] = {name: [] for name in ways}
    for name, way in [pair for _ in range(ROUNDS) for pair in ways.items()]:
        began = time.perf_counter()
        way()
        took[name].append(1e3 * (time.perf_counter() - began))
    return {"milliseconds": {name: round(statistics.median(times), 2) for name, times in took.items()}}


def _request(choice: TopK, rows: int) -> SelectionRequest:
    return SelectionRequest(0, 0, rows, choice, ProcessorSpec(), np.zeros(1, np.int64), None, 0)


def _held(free: SelectionRequest, rng: np.random.Generator, vocab: int, count: int) -> SelectionRequest:
    """Each row has a list of its own."""
    lists = [np.sort(rng.choice(vocab, count, replace=False)) for _ in range(free.rows)]
    start = np.arange(free.rows, dtype=np.int64) * count
    allowed = AllowedLists(np.concatenate(lists).astype(np.int32), start, start + count)
    asked = (free.choice, free.processors, free.prompt, None, 0, None)
    return SelectionRequest(0, 0, free.rows, *asked, Ready(allowed))


def _compare(listed: Any, dense: Any) -> None:
    for name in ("rows", "tokens", "scores"):
        if not np.array_equal(getattr(listed[0], name), getattr(dense[0], name)):
            raise AssertionError(f"the two ways differ in {name}")


if __name__ == "__main__":
    main()
