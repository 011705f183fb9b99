"""What each option costs when the next tokens are chosen, beside torch on the same logits: CPU time a row.

    python -m benchmarks.selection [--rows 128 ...] [--groups 16] [--vocab 49152] [--only TEXT] [--rounds 7]
        [--dtype float32|bfloat16] [--record FILE]

--groups requests of equal size over random logits of standard deviation 3, each with 200 tokens of prompt and
50 generated ones, chosen as the engine does it (sampling.select), one thread. Options are measured in turn,
microseconds a row, medians. "plain" is a draw at temperature 0.8; the rest is that with one option more, or
another strategy. An option that changes logits costs a copy of them, about half of the sum. A list is of 500
tokens a row where it has no other number; bits let through one token in 64. What torch does on the same rows
is no whole choice, but what one would begin with: "torch logsumexp", "torch topk 50", "torch sort", and for
beams "torch log_softmax, topk". --groups 1 with --rows 512 is one beam of 512.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch

from benchmarks.record import record
from forkdecode.allowed import Allowed, AllowedBits, AllowedLists, Ready
from forkdecode.sampling.select import select
from forkdecode.step import (
    Choice,
    Draw,
    Gather,
    GumbelTopK,
    ProcessorSpec,
    RowTopK,
    SelectionRequest,
    TopK,
)

PROMPT, GENERATED, SEED = 200, 50, 0
Requests = list[SelectionRequest]
Way = Callable[[], object]


class Batch:
    """`groups` requests of rows / groups rows each, and what their options are made of."""

    def __init__(self, rows: int, groups: int, vocab: int) -> None:
        self.groups, self.each, self.vocab = groups, rows // groups, vocab
        self._rng = np.random.default_rng(SEED)
        self._histories = [
            (self._ids(PROMPT), self._ids(self.each * GENERATED).reshape(self.each, GENERATED))
            for _ in range(groups)
        ]

    def requests(
        self,
        choice: Callable[[], Choice],
        allowed: Callable[[], Allowed] | None = None,
        num_logprobs: int | None = None,
        generated: int = GENERATED,
        **processors: Any,
    ) -> Requests:
        """One a group. choice and allowed are made anew for each."""
        spec = ProcessorSpec(**processors)
        return [
            SelectionRequest(
                i,
                i * self.each,
                self.each,
                choice(),
                spec,
                prompt,
                made[:, :generated] if spec.reads_history else None,
                generated,
                num_logprobs,
                None if allowed is None else Ready(allowed()),
            )
            for i, (prompt, made) in enumerate(self._histories)
        ]

    def draw(self, temperature: float = 0.8, **filters: Any) -> Callable[[], Choice]:
        made = Draw(np.arange(self.each, dtype=np.int32), self._lineage(), 3, temperature)
        return lambda: replace(made, lineage=self._lineage(), **filters)

    def beam(self) -> Choice:
        return TopK(2 * self.each, np.zeros(self.each, np.float32), self.each)

    def by_row(self) -> Choice:
        return RowTopK(self.each + 1, np.zeros(self.each, np.float32), 1)

    def stochastic(self, **filters: Any) -> Callable[[], Choice]:
        zeros = np.zeros(self.each)
        made = GumbelTopK(2 * self.each, zeros, zeros, self._lineage(), 3, 0.8)
        return lambda: replace(made, lineage=self._lineage(), **filters)

    def gather(self) -> Choice:
        return Gather(np.arange(self.each, dtype=np.int32), self._ids(self.each))

    def listed(self, count: int = 500) -> Callable[[], Allowed]:
        """Each row has a list of its own."""

        def make() -> Allowed:
            lists = [np.sort(self._rng.choice(self.vocab, count, replace=False)) for _ in range(self.each)]
            start = np.arange(self.each, dtype=np.int64) * count
            return AllowedLists(np.concatenate(lists).astype(np.int32), start, start + count)

        return make

    def bits(self) -> Allowed:
        words = self._rng.integers(0, 32, (self.each, -(-self.vocab // 32)))
        few = np.where(self._rng.random(words.shape) < 0.5, 1 << words, 0)
        return AllowedBits(few.astype(np.uint32))

    def words(self, count: int, length: int) -> tuple[tuple[int, ...], ...]:
        return tuple(map(tuple, self._ids(count * length).reshape(count, length).tolist()))

    def ids(self, count: int) -> np.ndarray:
        return np.unique(self._ids(count))

    def _ids(self, count: int) -> np.ndarray:
        return self._rng.integers(0, self.vocab, count)

    def _lineage(self) -> np.ndarray:
        return self._rng.integers(0, 2**63, self.each).astype(np.uint64)


def filters(batch: Batch) -> dict[str, Requests]:
    """Options that shape what is drawn from."""
    given: dict[str, dict[str, float]] = {
        "plain": {},
        "temperature 1": {"temperature": 1.0},
        "greedy": {"temperature": 0.0},
        "top_k 50": {"top_k": 50},
        "top_p 0.95": {"top_p": 0.95},
        "top_p 0.999": {"top_p": 0.999},
        "min_p 0.05": {"min_p": 0.05},
        "min_p 0.0001": {"min_p": 0.0001},
        "typical_p 0.9": {"typical_p": 0.9},
        "typical_p 0.2": {"typical_p": 0.2},
        "typical_p 0.9, temperature 2": {"typical_p": 0.9, "temperature": 2.0},
        "top_p 0.95, typical_p 0.9": {"top_p": 0.95, "typical_p": 0.9},
        "all four": {"top_k": 1000, "top_p": 0.95, "min_p": 0.001, "typical_p": 0.9},
    }
    return {name: batch.requests(batch.draw(**each)) for name, each in given.items()}


def processors(batch: Batch) -> dict[str, Requests]:
    """Options that change logits first."""
    biased = batch.ids(100)
    bias = {"bias_ids": biased, "bias_values": np.ones(len(biased), np.float32)}
    given: dict[str, Mapping[str, Any]] = {
        "repetition_penalty 1.1": {"repetition_penalty": 1.1},
        "presence, frequency 0.5": {"presence_penalty": 0.5, "frequency_penalty": 0.5},
        "no_repeat_ngram_size 3": {"no_repeat_ngram_size": 3},
        "logit_bias of 100": bias,
        "bad_words, 100 of one token": {"bad_words": batch.words(100, 1)},
        "bad_words, 100 of three": {"bad_words": batch.words(100, 3)},
        "allowed_token_ids, 500": {"allowed_token_ids": batch.ids(500)},
        "min_tokens": {"min_tokens": 60, "suppressed_ids": batch.ids(2)},
    }
    found = {name: batch.requests(batch.draw(), **each) for name, each in given.items()}
    found["forced_prefix"] = batch.requests(batch.draw(), generated=1, forced_prefix=(5, 6, 7))
    found["repetition_penalty, top_p"] = batch.requests(batch.draw(top_p=0.95), repetition_penalty=1.1)
    found["logprobs 0"] = batch.requests(batch.draw(), num_logprobs=0)
    found["logprobs 20"] = batch.requests(batch.draw(), num_logprobs=20)
    found["logprobs 20, top_p 0.95"] = batch.requests(batch.draw(top_p=0.95), num_logprobs=20)
    return found


def strategies(batch: Batch) -> dict[str, Requests]:
    """Other ways to choose, and constraints with each."""
    choices: dict[str, Callable[[], Choice]] = {
        "draw": batch.draw(),
        "draw, top_p": batch.draw(top_p=0.95),
        "beam": batch.beam,
        "diverse beam": batch.by_row,
        "stochastic beam": batch.stochastic(),
    }
    found: dict[str, Requests] = {}
    for name, choice in choices.items():
        if not name.startswith("draw"):
            found[name] = batch.requests(choice)
            found[f"{name}, repetition_penalty"] = batch.requests(choice, repetition_penalty=1.1)
            found[f"{name}, logprobs 20"] = batch.requests(choice, num_logprobs=20)
        found[f"{name}, list"] = batch.requests(choice, batch.listed())
        found[f"{name}, list of 4,000"] = batch.requests(choice, batch.listed(4000))
        found[f"{name}, bits"] = batch.requests(choice, batch.bits)
    found["stochastic beam, top_p"] = batch.requests(batch.stochastic(top_p=0.95))
    found["score"] = batch.requests(batch.gather)
    return found


def by_torch(logits: torch.Tensor, groups: int) -> dict[str, Way]:
    """What a choice would begin with, by torch. Beams look for twice as many candidates as they have rows."""
    rows, vocab = logits.shape
    most = 2 * rows // groups

    def candidates() -> object:
        return logits.float().log_softmax(1).view(groups, rows // groups * vocab).topk(most, 1)

    return {
        "torch logsumexp": lambda: logits.logsumexp(1),
        "torch topk 50": lambda: logits.topk(50, 1),
        "torch sort": lambda: logits.sort(1, descending=True),
        "torch log_softmax, topk": candidates,
    }


def chosen(logits: torch.Tensor, requests: Requests) -> None:
    """One choice as the engine makes it. Raises RuntimeError where a request failed."""
    for result in select(logits, requests, threads=1):
        if result.error is not None:
            raise RuntimeError(str(result.error))


def measured(args: argparse.Namespace, rows: int) -> dict[str, float]:
    """Microseconds a row by option."""
    batch = Batch(rows, args.groups, args.vocab)
    values = np.random.default_rng(SEED + 1).standard_normal((rows, args.vocab), np.float32) * 3
    logits = torch.from_numpy(values).to(getattr(torch, args.dtype))
    torch.set_num_threads(1)
    options = filters(batch) | processors(batch) | strategies(batch)
    ways: dict[str, Way] = {name: partial(chosen, logits, own) for name, own in options.items()}
    ways |= by_torch(logits, args.groups)
    took: dict[str, list[float]] = {name: [] for name in ways if args.only in name}
    for turn in range(args.rounds + 1):
        for name, times in took.items():
            began = time.thread_time()
            ways[name]()
            spent = time.thread_time() - began
            if turn:
                times.append(1e6 * spent / rows)
    return {name: round(statistics.median(times), 1) for name, times in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[128])
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--vocab", type=int, default=49_152)
    parser.add_argument("--only", default="", help="options whose name has this text")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    for rows in args.rows:
        if rows % args.groups:
            parser.error(f"--rows {rows}: not a multiple of --groups {args.groups}")
        found = measured(args, rows)
        print(f"{rows} rows in {args.groups} groups, microseconds a row")
        for name, microseconds in found.items():
            print(f"{name:36s} {microseconds:8.1f}")
        if args.record:
            given = {"rows": rows, "groups": args.groups, "vocab": args.vocab, "dtype": args.dtype}
            record("selection", {**given, "seed": SEED, "microseconds": found}, args.record)


if __name__ == "__main__":
    main()
