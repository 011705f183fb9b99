"""Journals with traffic in them, what is changed in them, and where a replay breaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from forkdecode import Beam, Sample
from forkdecode.engine.core import Engine
from forkdecode.engine.replay import replay
from tests.engine.journals import changed, journaled, records
from tests.scheduler.engines import request, run


def busy(path: Path, mode: str = "recompute") -> Engine:
    """Traffic with copies, preemptions, a cancel and a failed step; the engine is not closed yet."""
    engine = journaled(path, num_blocks=40, host_slots=40, preemption=mode, max_prefill_tokens=8)
    for i in range(4):
        engine.submit(request(f"beam{i}", range(3, 14 + i), Beam(width=3), max_tokens=12))
        engine.submit(request(f"sample{i}", range(3, 10 + i), Sample(n=4, seed=i), max_tokens=12))
    engine._runner.fail_at = {9}  # type: ignore[attr-defined]
    for _ in range(6):
        engine.step()
    engine.cancel("sample1")
    run(engine)
    return engine


def broken(path: Path, **how: Any) -> Any:
    found = replay(path, **how)
    assert not found.ok
    return found.broken


def nth(found: list[list[Any]], kind: str, n: int) -> list[Any]:
    return [record for record in found if record[0] == kind][n]


def with_plan(path: Path, step: int, change: Callable[[dict[str, Any]], None]) -> None:
    def apply(found: list[list[Any]]) -> None:
        record = nth(found, "plan", step - 1)
        assert record[1] == step
        change(record[3])

    changed(path, apply)


def plans(path: Path) -> list[tuple[int, dict[str, Any]]]:
    return [
        (record[1], record[3]) for record in records(path) if record[0] == "plan" and record[3] is not None
    ]
