"""What the engine itself costs a step: scheduling, tables, attention's work list, commit and text.

    python -m benchmarks.engine_work [--workload NAME ...] [--steps N] [--rounds N] [--profile]
        [--record FILE]

Everything but the model: its answers come from gate_model.py, whose time is left out. Requests stream,
end at EOS (which never comes) and have their text made, all in one thread. Times are microseconds of the
thread's own CPU time, each part the median over the steps in which every row decodes. --rounds runs all
workloads again, in turn, and the least of the medians counts: a neighbour on the core only ever adds.
--profile prints where the calls of one workload spend their time instead.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")

import numpy as np  # noqa: E402 - the thread count is read at import

from benchmarks.gate import request  # noqa: E402
from benchmarks.gate_model import VOCABULARY, ExactModel  # noqa: E402
from benchmarks.record import record  # noqa: E402
from forkdecode.config import EngineConfig  # noqa: E402
from forkdecode.requests.assembly import Assembler  # noqa: E402
from forkdecode.scheduler.preemption import PreemptionCost  # noqa: E402
from forkdecode.scheduler.scheduler import Scheduler  # noqa: E402
from forkdecode.text.token_bytes import TokenBytes  # noqa: E402
from forkdecode.types import Beam, Greedy, Sample, Strategy  # noqa: E402
from forkdecode_kernels.attention_work import make_work  # noqa: E402

BLOCK, PROMPT, WARM_UP = 16, 200, 4
TOKENS = TokenBytes.build([f" t{i}".encode() for i in range(VOCABULARY + 1)])
PARTS = ("schedule", "work list", "commit", "text")


@dataclass(frozen=True)
class Load:
    """`groups` requests of one strategy, `rows` rows each."""

    name: str
    groups: int
    rows: int
    strategy: Callable[[int], Strategy]


LOADS = (
    Load("16 x 8 samples", 16, 8, lambda i: Sample(8, seed=i)),
    Load("16 x beam 4", 16, 4, lambda i: Beam(4)),
    Load("64 x greedy", 64, 1, lambda i: Greedy()),
    Load("1 x beam 512", 1, 512, lambda i: Beam(512)),
)


class Engine:
    """A scheduler and its listeners, a step at a time."""

    def __init__(self, load: Load, steps: int) -> None:
        rows = load.groups * load.rows
        blocks = load.groups * (PROMPT // BLOCK + 2) + rows * (steps // BLOCK + 3)
        config = EngineConfig(
            watermark=0.0, overcommit=True, max_step_tokens=1 << 20, max_prefill_tokens=1 << 20
        )
        self._null = blocks
        self._scheduler = Scheduler(config, blocks, 0, PreemptionCost(1.0, 1.0), b"engine work", lambda: 0.0)
        self._model = ExactModel()
        self._listeners: dict[str, Assembler] = {}
        for i in range(load.groups):
            asked = request(i, PROMPT, load.strategy(i), steps, shared=False)
            asked = replace(asked, eos_ids=np.array([VOCABULARY]), stream=True)
            self._listeners[asked.request_id] = Assembler(asked, TOKENS)
            self._scheduler.add(asked)

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def step(self) -> tuple[int, tuple[float, ...]]:
        """Rows decoded, and microseconds of each of PARTS."""
        plan, scheduling = timed(self._scheduler.schedule)
        assert plan is not None
        padded = -(-len(plan.token_ids) // 16) * 16
        _, listing = timed(lambda: make_work(plan.segments, plan.decodes, padded, BLOCK, self._null))
        output = self._model.execute(plan)
        events, committing = timed(lambda: self._scheduler.commit(output))
        _, telling = timed(lambda: [self._listeners[e.request_id].events(e) for e in events])
        return sum(d.rows for d in plan.decodes), (scheduling, listing, committing, telling)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.thread_time()
    result = work()
    return result, (time.thread_time() - begin) * 1e6


def measure(load: Load, steps: int) -> dict[str, float]:
    """Microseconds of each part, medians over the full steps."""
    engine, full = Engine(load, steps + WARM_UP + 1), []
    while engine.has_work:
        rows, parts = engine.step()
        if rows == load.groups * load.rows:
            full.append(parts)
    columns = zip(*full[WARM_UP:-1], strict=True)
    return dict(zip(PARTS, map(statistics.median, columns), strict=True))


def profile(load: Load, steps: int) -> None:
    """Prints what is called most and longest."""
    engine = Engine(load, steps)
    with cProfile.Profile() as profiler:
        while engine.has_work:
            engine.step()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workload", nargs="*", choices=[load.name for load in LOADS])
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    loads = [load for load in LOADS if not args.workload or load.name in args.workload]
    if args.profile:
        for load in loads:
            profile(load, args.steps)
        return
    rounds = [[measure(load, args.steps) for load in loads] for _ in range(args.rounds)]
    print(f"{'us a step':16s}" + "".join(f"{part:>12s}" for part in (*PARTS, "all", "a group")))
    for load, found in zip(loads, zip(*rounds, strict=True), strict=True):
        best = {part: min(round_[part] for round_ in found) for part in PARTS}
        total = sum(best.values())
        cells = (*best.values(), total, total / load.groups)
        print(f"{load.name:16s}" + "".join(f"{value:12.0f}" for value in cells))
        if args.record:
            settings = {"workload": load.name, "groups": load.groups, "steps": args.steps, "seed": 0}
            record("engine_work", settings | best, args.record)


if __name__ == "__main__":
    main()
