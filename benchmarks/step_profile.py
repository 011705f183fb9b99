"""Where each millisecond of a decode step goes, for the workloads of benchmarks.throughput.

    python -m benchmarks.step_profile [--model M] [--dtype D] [--threads N] [--workload NAME ...]
        [--clock wall|cpu] [--decoder auto|generic] [--steps N] [--record FILE]

One engine, no thread of its own: schedule, execute and commit are called in turn, and what they call
is wrapped by a clock from outside. Reported is the median over the steps after the prompt is read,
in milliseconds; a part's time leaves out the parts inside it. --clock cpu counts the thread's own
CPU time, for machines that are busy with other things; it needs --threads 1 to be the whole.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.workloads import SEED, TEMPERATURE, TOP_P, WORKLOADS, Workload
from benchmarks.prompts import passage
from benchmarks.record import record

PARTS = (
    "schedule", "blocks", "plan", "embedding", "norms", "qkv", "rotate+write", "attention", "attention out",
    "gate+up", "gate", "down", "widen", "modules", "lm_head", "selection", "commit", "detokenise", "rest",
)  # fmt: skip


class Clock:
    """Time of nested parts, each without the parts inside it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._inner = [0.0]
        self.parts: dict[str, float] = defaultdict(float)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        begin = self._now()
        self._inner.append(0.0)
        yield
        spent = self._now() - begin
        self.parts[name] += spent - self._inner.pop()
        self._inner[-1] += spent

    def wrap(self, name: str, function: Any) -> Any:
        @functools.wraps(function, updated=())
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return timed

    def patch(self, owner: Any, attribute: str, name: str) -> None:
        setattr(owner, attribute, self.wrap(name, getattr(owner, attribute)))

    def take(self) -> dict[str, float]:
        taken, self.parts = dict(self.parts), defaultdict(float)
        return taken


class _TimedLinear:
    def __init__(self, clock: Clock, name: str, linear: Any) -> None:
        self.forward = clock.wrap(name, linear.forward)


def instrument(clock: Clock, runner: Any) -> None:
    """Puts the clock around the runner's parts, and around the lean decoder's where there is one."""
    from forkdecode.model import attention, lean, selecting
    from forkdecode.model import runner as module
    from forkdecode_kernels.layer_tape import LayerTape

    for cache_method in ("swap_out", "swap_in", "zero", "copy"):
        clock.patch(runner.cache, cache_method, "blocks")
    clock.patch(module, "make_work", "plan")
    clock.patch(attention, "plan_attention", "plan")
    clock.patch(selecting, "begin", "selection")
    runner._head = _TimedHead(clock, runner._head)
    decoder = runner._decoder
    if not isinstance(decoder, lean.LeanDecoder):
        clock.patch(attention, "attention", "attention")
        clock.patch(attention, "write_kv", "rotate+write")
        runner._decoder = clock.wrap("modules", decoder.__call__)
        return
    LayerTape.run = functools.partialmethod(_run_timed, clock)  # type: ignore[method-assign,assignment]
    clock.patch(lean, "attention", "attention")
    clock.patch(lean, "split_rotate_write", "rotate+write")
    clock.patch(lean, "gated", "gate")
    clock.patch(lean, "add_rms_norm", "norms")
    decoder._embedding = clock.wrap("embedding", decoder._embedding.__call__)
    names = {"qkv": "qkv", "out": "attention out", "gate_up": "gate+up", "down": "down"}
    decoder._layers = [
        dataclasses.replace(layer, **_timed_linears(clock, layer, names)) for layer in decoder._layers
    ]


def _timed_linears(clock: Clock, layer: Any, names: dict[str, str]) -> dict[str, Any]:
    return {f: _TimedLinear(clock, name, getattr(layer, f)) for f, name in names.items()}


def _run_timed(tape: Any, clock: Clock) -> None:
    """A tape's passes one by one, each timed; some microseconds apiece more than all by one call."""
    for i, name in enumerate(tape.names):
        with clock.part({"norm": "norms", "rotate": "rotate+write"}.get(name, name)):
            tape.run_pass(i)


class _TimedHead:
    def __init__(self, clock: Clock, head: Any) -> None:
        self._call = clock.wrap("lm_head", head.__call__)
        self.runs = head.runs
        self.max_rows = head.max_rows

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)


class Profile:
    """An engine whose steps are taken one by one, and its clock."""

    def __init__(self, args: argparse.Namespace) -> None:
        from forkdecode.config import EngineConfig
        from forkdecode.engine.start import build_engine
        from forkdecode.model.loader import load
        from forkdecode.requests.resolve import Resolver

        loaded = load(args.model, args.dtype)
        self._dtype = loaded.info.dtype
        self._tokenizer = loaded.tokenizer
        self._resolver = Resolver(loaded.tokenizer, loaded.info)
        self._engine, _ = build_engine(
            loaded, EngineConfig(prefix_cache=False), args.threads, decoder=args.decoder
        )
        self.clock = Clock(time.thread_time if args.clock == "cpu" else time.perf_counter)
        instrument(self.clock, self._engine._runner)

    @property
    def dtype(self) -> str:
        return self._dtype

    def run(self, work: Workload, steps: int) -> dict[str, float]:
        """Milliseconds of each part, median over `steps` decode steps."""
        from forkdecode import Beam, Greedy, Options, Sample
        from forkdecode.requests.assembly import Assembler

        strategy: Any = {
            "beam": lambda: Beam(work.rows, num_return_sequences=1),
            "sample": lambda: Sample(work.rows, temperature=TEMPERATURE, top_p=TOP_P, seed=SEED),
            "greedy": Greedy,
        }[work.kind]()
        options = Options(max_tokens=steps + 8, ignore_eos=True)
        assemblers = {}
        for i, length in enumerate(work.lengths):
            prompt = passage(self._tokenizer, length, offset=i)
            request = self._resolver.resolve(prompt, strategy, options, request_id=f"{i}", stream=True)
            assemblers[request.request_id] = Assembler(request, self._resolver.token_bytes())
            self._engine.submit(request)
        seen = []
        while self._engine.has_work:
            rows, parts = self._step(assemblers)
            if rows == work.rows * len(work.lengths):
                seen.append(parts)
        kept = seen[4 : 4 + steps]
        return {name: statistics.median(p.get(name, 0.0) for p in kept) for name in PARTS}

    def _step(self, assemblers: dict[str, Any]) -> tuple[int, dict[str, float]]:
        """Rows of the step if it is a pure decode step, else -1; milliseconds by part."""
        clock, scheduler = self.clock, self._engine.scheduler
        with clock.part("rest"):
            with clock.part("schedule"):
                plan = scheduler.schedule()
            assert plan is not None and self._engine._runner is not None  # noqa: PT018 - narrows both
            output = self._engine._runner.execute(plan)
            with clock.part("commit"):
                events = scheduler.commit(output)
            with clock.part("detokenise"):
                for event in events:
                    assemblers[event.request_id].events(event)
        rows = -1 if plan.segments else sum(group.rows for group in plan.decodes)
        return rows, {name: seconds * 1e3 for name, seconds in clock.take().items()}


def table(columns: dict[str, dict[str, float]]) -> str:
    """Parts down, workloads across; parts that took no time are left out."""
    names = [part for part in PARTS if any(column[part] >= 0.005 for column in columns.values())]
    lines = [f"{'ms a step':14s}" + "".join(f"{name:>15s}" for name in columns)]
    lines += [f"{part:14s}" + "".join(f"{c[part]:15.2f}" for c in columns.values()) for part in names]
    lines.append(f"{'sum':14s}" + "".join(f"{sum(c.values()):15.2f}" for c in columns.values()))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--decoder", choices=("auto", "generic"), default="auto")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--workload", nargs="*", choices=[w.name for w in WORKLOADS])
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    profile = Profile(args)
    columns: dict[str, dict[str, float]] = {}
    for work in WORKLOADS:
        if args.workload and work.name not in args.workload:
            continue
        columns[work.name] = profile.run(work, args.steps)
        settings = {"threads": args.threads, "clock": args.clock, "decoder": args.decoder, "seed": SEED}
        found = {"workload": work.name, "dtype": profile.dtype, **settings, "ms": columns[work.name]}
        if args.record:
            record("step_profile", found, args.record)
    print(table(columns))


if __name__ == "__main__":
    main()
