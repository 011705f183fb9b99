"""How the time of a step and its memory grow: with width, prompt, groups and output.

    python -m benchmarks.growth [--axis width prompt groups output] [--kind beam] [--steps N] [--record FILE]
    python -m benchmarks.growth --model smollm2-135m-instruct [--limit SECONDS] [--threads N] ...

Without --model the control plane alone: the real scheduler, block pool, strategies and forest plan run on
a model that costs nothing to speak of (gate_model.py) and whose time is left out. One axis grows, the
others stay: width 8, a prompt of 512 tokens, one group, 48 new tokens. Times are the thread's own CPU time,
medians over the steps in which every row decodes. exponent: the slope of log time over log size, fitted to
the upper half of the sizes, where constants matter least: 0 is "does not grow", 1 "in proportion".

With --model whole steps of an engine (growth_model.py): width 4, a prompt of 58 tokens, one group, the
control plane's share and the bytes of the KV blocks beside it. Sizes that do not fit into the model, the
pool or --limit seconds an axis are left out, and the record says so.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import growth_model
from benchmarks.gate import ITEMS, request
from benchmarks.gate_model import ExactModel
from benchmarks.growth_fit import exponent
from benchmarks.record import record
from forkdecode.config import EngineConfig
from forkdecode.kv.forest_plan import ForestPlanner
from forkdecode.scheduler.preemption import PreemptionCost
from forkdecode.scheduler.scheduler import Scheduler
from forkdecode.step import StepOutput, StepPlan
from forkdecode.types import Beam, Sample

WARM_UP = 8
"""Steps of every row that are not timed."""


@dataclass(frozen=True)
class Size:
    width: int = 8
    prompt: int = 512
    groups: int = 1
    output: int = 48


SIZES: dict[str, list[int]] = {
    "width": [1, 4, 16, 64, 256, 1024, 4096],
    "prompt": [16, 64, 250, 1000, 2500, 8000],
    "groups": [1, 4, 16, 64, 256],
    "output": [32, 64, 128, 256, 512, 1024, 2048],
}


@dataclass(frozen=True)
class Step:
    """Microseconds by part, and blocks held while the step ran."""

    rows: int
    schedule: float
    commit: float
    plan: float
    unique: int
    unshared: int


class Runner:
    """One engine of a size, a step at a time."""

    def __init__(self, size: Size, kind: str, seed: int) -> None:
        self.size = size
        rows = size.width * size.groups
        blocks = size.groups * (size.prompt // 16 + 2) + rows * (size.output // 16 + 3)
        config = EngineConfig(
            prefix_cache=False,
            watermark=0.0,
            overcommit=True,
            max_step_tokens=1 << 20,
            max_prefill_tokens=1 << 20,
        )
        cost = PreemptionCost(1.0, 1.0)
        self._scheduler = Scheduler(config, blocks, 0, cost, b"growth", clock=lambda: 0.0)
        self._model = ExactModel()
        self._planner = ForestPlanner(ITEMS)
        for index in range(size.groups):
            strategy = Beam(size.width) if kind == "beam" else Sample(size.width, seed=seed + index)
            self._scheduler.add(request(index, size.prompt, strategy, size.output, shared=False))

    def steps(self) -> list[Step]:
        """All steps in which every row decodes."""
        found = []
        while self._scheduler.has_work:
            step = self._step()
            if step.rows == self.size.width * self.size.groups:
                found.append(step)
        return found

    def _step(self) -> Step:
        before = self._scheduler.stats()
        plan, schedule = timed(self._scheduler.schedule)
        assert plan is not None
        _, planning = timed(lambda: self._planner.plan(plan.segments, plan.decodes, len(plan.token_ids)))
        output: StepOutput = self._model.execute(plan)
        _, commit = timed(lambda: self._scheduler.commit(output))
        after = self._scheduler.stats()
        return Step(
            rows_of(plan),
            schedule,
            commit,
            planning,
            after.unique_block_steps - before.unique_block_steps,
            after.unshared_block_steps - before.unshared_block_steps,
        )


def rows_of(plan: StepPlan) -> int:
    return sum(d.rows for d in plan.decodes)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What `work` returns, and microseconds of CPU."""
    begin = time.thread_time()
    result = work()
    return result, (time.thread_time() - begin) * 1e6


def point(size: int, steps: list[Step]) -> dict[str, float]:
    """One size's medians."""
    return {
        "size": size,
        "steps": len(steps),
        "control_us": statistics.median(s.schedule + s.commit for s in steps),
        "plan_us": statistics.median(s.plan for s in steps),
        "unique_blocks": statistics.median(s.unique for s in steps),
        "unshared_blocks": statistics.median(s.unshared for s in steps),
    }


def grow(
    axis: str, kind: str, steps: int, largest: int | None = None, seed: int = 0
) -> list[dict[str, float]]:
    """A point for each size of an axis; those of `output` are stretches of one long run."""
    sizes = [s for s in SIZES[axis] if largest is None or s <= largest]
    if axis == "output":
        run = Runner(Size(output=sizes[-1] + 1), kind, seed).steps()
        # The last steps before each length: as many as the shortest has.
        return [point(s, run[max(0, s - 24) : s - 1]) for s in sizes]
    points = []
    for size in sizes:
        run = Runner(replace(Size(output=steps + WARM_UP), **{axis: size}), kind, seed).steps()
        points.append(point(size, run[WARM_UP:] or run))
    return points


def fitted(points: list[dict[str, float]]) -> dict[str, float]:
    """The exponent of each value."""
    sizes = [p["size"] for p in points]
    names = ("control_us", "plan_us", "unique_blocks", "unshared_blocks")
    return {name: round(exponent(sizes, [p[name] for p in points]), 3) for name in names}


def control_plane(args: argparse.Namespace, kind: str, axis: str) -> None:
    points = grow(axis, kind, args.steps, args.largest, args.seed)
    exponents = fitted(points)
    found = {"axis": axis, "kind": kind, "points": points, "exponents": exponents, "seed": args.seed}
    if args.record:
        record("growth", found, args.record)
    print(f"{kind} {axis}: exponents {exponents}")
    for p in points:
        print(
            f"{p['size']:>8.0f}{p['control_us']:>12.0f} us{p['plan_us']:>10.0f} us plan"
            f"{p['unique_blocks']:>10.0f} of {p['unshared_blocks']:.0f} blocks"
        )


def whole_steps(args: argparse.Namespace, engine: growth_model.ModelEngine, kind: str, axis: str) -> None:
    grown = growth_model.grow(engine, axis, kind, args.limit, args.largest)
    for size, reason in grown.left_out.items():
        print(f"{kind} {axis} {size:,} is left out: {reason}")
    if len(grown.points) < 2:
        print(f"{kind} {axis}: no growth without two sizes")
        return
    settings = {"model": Path(args.model).name, "dtype": engine.info.dtype, "threads": args.threads}
    exponents = growth_model.fitted(grown.points)
    found = {"axis": axis, "kind": kind, **asdict(grown), "exponents": exponents, "seed": args.seed}
    if args.record:
        record("growth_model", settings | found, args.record)
    print(f"{kind} {axis}: exponents {exponents}")
    for p in grown.points:
        print(
            f"{p['size']:>8.0f}{p['step_ms']:>12.1f} ms{p['control_ms']:>10.2f} ms scheduler"
            f"{p['kv_bytes'] / 1e6:>10.1f} of {p['unshared_bytes'] / 1e6:.1f} MB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--axis", nargs="*", choices=SIZES, default=list(SIZES))
    parser.add_argument("--kind", nargs="*", choices=("beam", "sample"), default=["beam", "sample"])
    parser.add_argument("--steps", type=int, default=40, help="timed steps of each size, without --model")
    parser.add_argument("--largest", type=int, help="leave out sizes above this")
    parser.add_argument("--model", help="of whole steps")
    parser.add_argument("--dtype", default="auto", help="with --model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="with --model")
    parser.add_argument("--limit", type=float, default=100.0, help="seconds an axis, with --model")
    parser.add_argument("--seed", type=int, default=0, help="of the samples")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    for axis in args.axis:
        if args.largest is not None and args.largest < SIZES[axis][1]:
            parser.error(
                f"--largest {args.largest}: growth needs two sizes, {axis} has them at {SIZES[axis][1]}"
            )
    measure = partial(control_plane, args)
    if args.model:
        engine = growth_model.ModelEngine(args.model, args.dtype, args.threads, args.seed)
        measure = partial(whole_steps, args, engine)
    for kind in args.kind:
        for axis in args.axis:
            measure(kind, axis)


if __name__ == "__main__":
    main()
