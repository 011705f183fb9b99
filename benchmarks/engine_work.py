"""What the engine itself costs a step: scheduling, tables, attention's work list, commit and text.

    python -m benchmarks.engine_work [--workload NAME ...] [--steps N] [--rounds N] [--profile]
        [--record FILE]
    python -m benchmarks.engine_work --options [NAME ...] [--rows 64 128] [the same]

Everything but the model: its answers come from gate_model.py, whose time is left out. Requests stream,
end at EOS (which never comes) and have their text made, all in one thread. A device has nothing to do while
the host schedules, lists its work and commits; what streamed beams report ("beams") and the frame in which
an engine process sends it come while the device computes the next step. Times are microseconds of the
thread's own CPU time, each part the median over the steps in which every row decodes. --rounds runs all
workloads again, in turn, and the least of the medians counts: a neighbour on the core only ever adds.
--profile prints where the calls of one workload spend their time instead.

--options: 16 groups with each option (engine_options.py), the choice among 49,152 random logits included,
microseconds a row. Masks of grammars are made in another thread, whose time is not in it.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")

import numpy as np  # noqa: E402 - the thread count is read at import

from benchmarks.engine_options import TOKENS as OPTION_TOKENS  # noqa: E402
from benchmarks.engine_options import Option, RandomModel, options  # noqa: E402
from benchmarks.gate import request  # noqa: E402
from benchmarks.gate_model import VOCABULARY, ExactModel  # noqa: E402
from benchmarks.record import record  # noqa: E402
from forkdecode.config import EngineConfig  # noqa: E402
from forkdecode.requests.assembly import Assembler  # noqa: E402
from forkdecode.scheduler.preemption import PreemptionCost  # noqa: E402
from forkdecode.scheduler.request import DecodeRequest  # noqa: E402
from forkdecode.scheduler.scheduler import Scheduler  # noqa: E402
from forkdecode.text.token_bytes import TokenBytes  # noqa: E402
from forkdecode.types import Beam, Greedy, Sample, Strategy  # noqa: E402
from forkdecode.wire.messages import Events  # noqa: E402
from forkdecode.wire.records import CODEC  # noqa: E402
from forkdecode_kernels.attention_work import make_work  # noqa: E402

BLOCK, PROMPT, WARM_UP = 16, 200, 4
TOKENS = TokenBytes.build([f" t{i}".encode() for i in range(VOCABULARY + 1)])
PARTS = ("schedule", "work list", "commit", "beams", "frame", "text")
OPTION_GROUPS, OPTION_STEPS = 16, 12
OPTION_PARTS = ("schedule", "selection", "commit", "text")


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

    def __init__(
        self, requests: Sequence[DecodeRequest], rows: int, model: Any, tokens: TokenBytes, steps: int
    ) -> None:
        """requests: of `rows` rows together, and of `steps` tokens."""
        blocks = len(requests) * (PROMPT // BLOCK + 2) + rows * (steps // BLOCK + 3)
        config = EngineConfig(
            watermark=0.0, overcommit=True, max_step_tokens=1 << 20, max_prefill_tokens=1 << 20
        )
        self._null = blocks
        self._scheduler = Scheduler(config, blocks, 0, PreemptionCost(1.0, 1.0), b"engine work", lambda: 0.0)
        self._model = model
        self._listeners: dict[str, Assembler] = {}
        for asked in requests:
            self._listeners[asked.request_id] = Assembler(asked, tokens)
            self._scheduler.add(asked)

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def step(self) -> tuple[int, dict[str, float]]:
        """Rows decoded, and microseconds of each of PARTS and of the model, which is called "selection"."""
        plan, scheduling = timed(self._scheduler.schedule)
        assert plan is not None
        padded = -(-len(plan.token_ids) // 16) * 16
        _, listing = timed(lambda: make_work(plan.segments, plan.decodes, padded, BLOCK, self._null))
        output, selecting = timed(lambda: self._model.execute(plan))
        events, committing = timed(lambda: self._scheduler.carry_out(output))
        later, comparing = timed(self._scheduler.tell)
        events += later
        _, framing = timed(lambda: CODEC.encode(Events(tuple(events))))
        _, telling = timed(lambda: [self._listeners[e.request_id].events(e) for e in events])
        times = (scheduling, listing, committing, comparing, framing, telling)
        spent = dict(zip(PARTS, times, strict=True))
        return sum(d.rows for d in plan.decodes), spent | {"selection": selecting}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.thread_time()
    result = work()
    return result, (time.thread_time() - begin) * 1e6


def of_load(load: Load, steps: int) -> Engine:
    """The engine that works on `load` for `steps` tokens."""
    requests = []
    for i in range(load.groups):
        asked = request(i, PROMPT, load.strategy(i), steps, shared=False)
        requests.append(replace(asked, eos_ids=np.array([VOCABULARY]), stream=True))
    return Engine(requests, load.groups * load.rows, ExactModel(), TOKENS, steps)


def of_option(option: Option, rows: int, model: RandomModel, steps: int) -> Engine:
    """The engine that works on requests with `option` for `steps` tokens."""
    requests = option.requests(OPTION_GROUPS, rows, steps)
    return Engine(requests, rows, model, OPTION_TOKENS, steps)


def measure(engine: Engine, rows: int) -> dict[str, float]:
    """Microseconds of each part, medians over the steps in which all `rows` decode."""
    full = []
    while engine.has_work:
        decoded, parts = engine.step()
        if decoded == rows:
            full.append(parts)
    counted = full[WARM_UP:-1]
    return {part: statistics.median(spent[part] for spent in counted) for part in counted[0]}


def profile(engine: Engine) -> None:
    """Prints what is called most and longest."""
    with cProfile.Profile() as profiler:
        while engine.has_work:
            engine.step()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


def least(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each part, that of the round in which it took least."""
    return {part: min(spent[part] for spent in rounds) for part in rounds[0]}


def run_loads(args: argparse.Namespace) -> None:
    """Measures, prints and records LOADS."""
    loads = [load for load in LOADS if not args.workload or load.name in args.workload]
    steps = args.steps or 64
    if args.profile:
        for load in loads:
            profile(of_load(load, steps))
        return
    rounds = [
        [measure(of_load(load, steps + WARM_UP + 1), load.groups * load.rows) for load in loads]
        for _ in range(args.rounds)
    ]
    print(f"{'us a step':16s}" + "".join(f"{part:>12s}" for part in (*PARTS, "all", "a group")))
    for load, found in zip(loads, zip(*rounds, strict=True), strict=True):
        spent = least(found)
        best = {part: spent[part] for part in PARTS}
        total = sum(best.values())
        cells = (*best.values(), total, total / load.groups)
        print(f"{load.name:16s}" + "".join(f"{value:12.0f}" for value in cells))
        if args.record:
            settings = {"workload": load.name, "groups": load.groups, "steps": steps, "seed": 0}
            record("engine_work", settings | best, args.record)


def run_options(args: argparse.Namespace) -> None:
    """Measures, prints and records options."""
    known = options()
    named = {name: known[name] for name in args.options or known}
    steps = args.steps or OPTION_STEPS
    model = RandomModel(max(args.rows))
    ways = [(name, rows) for name in named for rows in args.rows]
    if args.profile:
        for name, rows in ways:
            profile(of_option(named[name], rows, model, steps))
        return
    rounds = [
        [measure(of_option(named[name], rows, model, steps + WARM_UP + 1), rows) for name, rows in ways]
        for _ in range(args.rounds)
    ]
    print(f"{'us a row':34s}{'rows':>6s}" + "".join(f"{part:>12s}" for part in (*OPTION_PARTS, "all")))
    for (name, rows), found in zip(ways, zip(*rounds, strict=True), strict=True):
        spent = least(found)
        spent["commit"] += spent["beams"]
        best = {part: round(spent[part] / rows, 2) for part in OPTION_PARTS}
        cells = (*best.values(), sum(best.values()))
        print(f"{name:34s}{rows:6d}" + "".join(f"{value:12.1f}" for value in cells), flush=True)
        if args.record:
            settings = {"option": name, "rows": rows, "groups": OPTION_GROUPS, "steps": steps, "seed": 0}
            record("engine_options", settings | best, args.record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workload", nargs="*", choices=[load.name for load in LOADS])
    parser.add_argument("--options", nargs="*", choices=list(options()), metavar="NAME")
    parser.add_argument("--rows", nargs="+", type=int, default=[64, 128], help="of --options")
    parser.add_argument("--steps", type=int, help=f"64, with --options {OPTION_STEPS}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    if args.options is None:
        run_loads(args)
    else:
        run_options(args)


if __name__ == "__main__":
    main()
