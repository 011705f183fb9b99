"""Growth with a real model: time per step and KV memory, the control plane's share told apart.

Everything is taken step by step in one thread: schedule, the model, commit. Times are of the clock on the
wall, for the model's products have threads of their own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.growth_fit import exponent
from benchmarks.prompts import passage

WARM_UP = 1
"""Steps of every row that are not timed."""
ENOUGH, LONG = 3, 4.0
"""So many timed steps will do where they take so many seconds."""


@dataclass(frozen=True)
class Size:
    """The point that every axis passes through. Prompts end in the middle of a block, so that rows have
    one block of their own each."""

    width: int = 4
    prompt: int = 58
    groups: int = 1
    output: int = 16


SIZES: dict[str, tuple[int, ...]] = {
    "width": (1, 4, 16, 64, 256, 1024, 4096),
    "prompt": (16, 64, 250, 1000, 2500, 8000),
    "groups": (1, 4, 16, 64, 256),
    "output": (32, 64, 128, 256, 512, 1024, 2048),
}


@dataclass(frozen=True)
class Step:
    """Milliseconds of a step in which every row decoded, and blocks held while it ran."""

    step_ms: float
    control_ms: float
    unique: int
    unshared: int


@dataclass(frozen=True)
class Axis:
    """points: one a size. left_out: size -> why it was not measured."""

    points: list[dict[str, float]]
    left_out: dict[int, str]


class ModelEngine:
    """A model and one engine, for points of any size."""

    def __init__(self, model: str, dtype: str, threads: int, seed: int) -> None:
        import torch

        from forkdecode.config import EngineConfig
        from forkdecode.engine.start import build_engine
        from forkdecode.model.kv_cache import bytes_per_block
        from forkdecode.model.loader import load
        from forkdecode.requests.resolve import Resolver

        self._loaded = load(model, dtype)
        self.info = self._loaded.info
        self._seed = seed
        self._resolver = Resolver(self._loaded.tokenizer, self.info)
        config = EngineConfig(
            kv_memory="60%",
            swap_memory=0,
            prefix_cache=False,
            overcommit=True,
            watermark=0.0,
            max_step_tokens=1 << 14,
            max_prefill_tokens=1 << 11,
        )
        self._engine, capacity = build_engine(self._loaded, config, threads)
        self._block_size = config.block_size
        self._num_blocks = capacity.num_blocks
        self.block_bytes = bytes_per_block(self.info, config.block_size, getattr(torch, self.info.dtype))

    def misfit(self, size: Size) -> str | None:
        """Why a size cannot be measured here, if it cannot."""
        if size.prompt + size.output > self.info.max_positions:
            return f"the model has {self.info.max_positions:,} positions"
        full = size.prompt // self._block_size
        tails = -(-(size.prompt + size.output) // self._block_size) - full
        blocks = size.groups * (full + 1 + size.width * tails)
        if blocks > self._num_blocks:
            return f"needs {blocks * self.block_bytes / 1e9:.0f} GB of KV blocks"
        return None

    def steps(self, size: Size, kind: str) -> Generator[Step, None, None]:
        """The steps in which every row decodes, as they are taken; closing it cancels the rest."""
        names = [str(index) for index in range(size.groups)]
        for index, name in enumerate(names):
            self._engine.submit(self._request(name, index, size, kind))
        try:
            while self._engine.has_work:
                rows, step = self._step()
                if rows == size.width * size.groups:
                    yield step
        finally:
            for name in names:
                self._engine.cancel(name)

    def _request(self, name: str, index: int, size: Size, kind: str) -> Any:
        from forkdecode import Beam, Options, Sample

        strategy: Any = Beam(size.width, num_return_sequences=1)
        if kind == "sample":
            strategy = Sample(size.width, seed=self._seed + index)
        prompt = passage(self._loaded.tokenizer, size.prompt, offset=index)
        options = Options(max_tokens=size.output, ignore_eos=True)
        return self._resolver.resolve(prompt, strategy, options, request_id=name, stream=False)

    def _step(self) -> tuple[int, Step]:
        scheduler, now = self._engine.scheduler, time.perf_counter
        before, begin = scheduler.stats(), now()
        plan = scheduler.schedule()
        assert plan is not None and self._engine._runner is not None  # noqa: PT018 - narrows both
        planned = now()
        output = self._engine._runner.execute(plan)
        executed = now()
        scheduler.commit(output)
        end, after = now(), scheduler.stats()
        return 0 if plan.segments else sum(d.rows for d in plan.decodes), Step(
            (end - begin) * 1e3,
            (planned - begin + end - executed) * 1e3,
            after.unique_block_steps - before.unique_block_steps,
            after.unshared_block_steps - before.unshared_block_steps,
        )


def point(size: int, steps: list[Step], block_bytes: int) -> dict[str, float]:
    """One size's medians."""
    return {
        "size": size,
        "steps": len(steps),
        "step_ms": statistics.median(s.step_ms for s in steps),
        "control_ms": statistics.median(s.control_ms for s in steps),
        "kv_bytes": statistics.median(s.unique for s in steps) * block_bytes,
        "unshared_bytes": statistics.median(s.unshared for s in steps) * block_bytes,
    }


def grow(engine: ModelEngine, axis: str, kind: str, limit: float, largest: int | None = None) -> Axis:
    """The points of an axis that fit into the model, the pool and `limit` seconds: a size is not begun
    whose time, in proportion to that of the size before, would be more than what is left."""
    sizes = [s for s in SIZES[axis] if largest is None or s <= largest]
    if axis == "output":
        return _grow_output(engine, sizes, kind, limit)
    points, left_out = list[dict[str, float]](), dict[int, str]()
    _timed(engine, Size(), kind)  # whatever happens only once
    begin, last = time.perf_counter(), (sizes[0], 0.0)
    for value in sizes:
        size = replace(Size(), **{axis: value})
        started = time.perf_counter()
        expected = last[1] * value / last[0]
        reason = engine.misfit(size)
        if reason is None and started - begin + expected > limit:
            reason = f"would take {expected:.0f} s"
        if reason is not None:
            left_out[value] = reason
            continue
        points.append(point(value, _timed(engine, size, kind), engine.block_bytes))
        last = value, time.perf_counter() - started
    return Axis(points, left_out)


def _timed(engine: ModelEngine, size: Size, kind: str) -> list[Step]:
    """The timed steps of a size: all, or as many as LONG allows."""
    kept, begin = list[Step](), time.perf_counter()
    steps = engine.steps(size, kind)
    for number, step in enumerate(steps):
        if number < WARM_UP:
            begin = time.perf_counter()
            continue
        kept.append(step)
        if len(kept) >= ENOUGH and time.perf_counter() - begin > LONG:
            break
    steps.close()
    return kept


def _grow_output(engine: ModelEngine, sizes: list[int], kind: str, limit: float) -> Axis:
    """One long run; the last steps before each length are its point."""
    misfits = {s: engine.misfit(replace(Size(), output=s + 1)) for s in sizes}
    left_out = {s: reason for s, reason in misfits.items() if reason is not None}
    fitting = [s for s in sizes if s not in left_out]
    if not fitting:
        return Axis([], left_out)
    kept, begin = list[Step](), time.perf_counter()
    steps = engine.steps(replace(Size(), output=fitting[-1] + 1), kind)
    for step in steps:
        kept.append(step)
        if time.perf_counter() - begin > limit:
            break
    steps.close()
    reached = [s for s in fitting if s <= len(kept) + 1]
    points = [point(s, kept[max(0, s - 17) : s - 1], engine.block_bytes) for s in reached]
    late = {s: "not reached in time" for s in fitting if s not in reached}
    return Axis(points, late | left_out)


def fitted(points: list[dict[str, float]]) -> dict[str, float]:
    """The exponent of each value."""
    sizes = [p["size"] for p in points]
    names = ("step_ms", "control_ms", "kv_bytes", "unshared_bytes")
    return {name: round(exponent(sizes, [p[name] for p in points]), 3) for name in names}
