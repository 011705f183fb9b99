"""A decode step's layers as one compiled call, and with each pass called by Python, in turn.

    python -m benchmarks.layer_calls [--model M] [--dtype float32|bfloat16] [--workload NAME ...] [--steps 24]
        [--record FILE]

One engine on one thread, step by step: the lean decoder runs every other step by its tape (see
forkdecode.model.lean_tape) and those between pass by pass, which gives the same bits. Milliseconds of the
thread's own CPU time in the decoder and what it takes to plan attention, medians over --steps of each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.workloads import SEED, TEMPERATURE, TOP_P, WORKLOADS, Workload
from benchmarks.prompts import passage
from benchmarks.record import record

WAYS = ("tape", "python")
WARM_UP = 4
"""Steps of each that don't count."""


class Turns:
    """An engine whose decode steps go one way and the other."""

    def __init__(self, model: str, dtype: str) -> None:
        from forkdecode.config import EngineConfig
        from forkdecode.engine.start import build_engine
        from forkdecode.model.loader import load
        from forkdecode.requests.resolve import Resolver

        loaded = load(model, dtype)
        self._tokenizer = loaded.tokenizer
        self._resolver = Resolver(loaded.tokenizer, loaded.info)
        self._engine, _ = build_engine(loaded, EngineConfig(prefix_cache=False), 1)
        runner: Any = self._engine._runner
        self._decoder = runner._decoder
        self.seconds = 0.0
        self._forward, runner._forward = runner._forward, self._timed
        self._tape = self._decoder._taped
        if self._tape is None:
            raise SystemExit("the model's products are not all our own: its layers have no tape")

    def run(self, work: Workload, steps: int) -> dict[str, float]:
        """Milliseconds of a step by each way."""
        self._submit(work, 2 * (steps + WARM_UP) + 4)
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for number, milliseconds in enumerate(self._decoded(work.rows * len(work.lengths))):
            times[WAYS[number % 2]].append(milliseconds)
        return {way: statistics.median(found[WARM_UP : WARM_UP + steps]) for way, found in times.items()}

    def _submit(self, work: Workload, tokens: int) -> None:
        from forkdecode import Beam, Greedy, Options, Sample

        strategy: Any = {
            "beam": lambda: Beam(work.rows, num_return_sequences=1),
            "sample": lambda: Sample(work.rows, temperature=TEMPERATURE, top_p=TOP_P, seed=SEED),
            "greedy": Greedy,
        }[work.kind]()
        options = Options(max_tokens=tokens, ignore_eos=True)
        for i, length in enumerate(work.lengths):
            prompt = passage(self._tokenizer, length, offset=i)
            self._engine.submit(self._resolver.resolve(prompt, strategy, options, request_id=f"{i}"))

    def _decoded(self, rows: int) -> Iterator[float]:
        """Milliseconds of each step that decodes so many rows and nothing else."""
        number = 0
        while self._engine.has_work:
            plan = self._engine.scheduler.schedule()
            assert plan is not None and self._engine._runner is not None  # noqa: PT018 - narrows both
            counts = not plan.segments and sum(group.rows for group in plan.decodes) == rows
            self._decoder._taped = self._tape if WAYS[number % 2] == "tape" else None
            self.seconds = 0.0
            self._engine.scheduler.commit(self._engine._runner.execute(plan))
            if counts:
                number += 1
                yield self.seconds * 1e3

    def _timed(self, plan: Any) -> Any:
        """The runner's forward pass."""
        begin = time.thread_time()
        found = self._forward(plan)
        self.seconds = time.thread_time() - begin
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--steps", type=int, default=24, help="of each way (default 24)")
    parser.add_argument("--workload", nargs="*", choices=[w.name for w in WORKLOADS])
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    turns = Turns(args.model, args.dtype)
    for work in WORKLOADS:
        if args.workload and work.name not in args.workload:
            continue
        ms = turns.run(work, args.steps)
        print(f"{work.name:15} {ms['python']:8.1f} by Python {ms['tape']:8.1f} as one call", flush=True)
        if args.record:
            record(
                "layer_calls",
                {"workload": work.name, "dtype": args.dtype, "steps": args.steps, "ms": ms, "seed": SEED},
                args.record,
            )


if __name__ == "__main__":
    main()
