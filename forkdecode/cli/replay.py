"""`forkdecode replay`: re-runs the decisions of a step journal and says whether they repeat."""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from forkdecode.engine.replay import Break, Replayed, replay
from forkdecode.engine.replay_run import RunSummary

REPEATS, BREAKS = 0, 1


def replay_journal(path: Path, *, until: int | None, as_json: bool) -> int:
    """Prints what a journal held. Returns the exit code: 1 where its decisions don't repeat or break a
    rule. Raises what replay() raises."""
    found = replay(path, until)
    typer.echo(json.dumps(_json(found)) if as_json else "\n".join(_lines(found)))
    return REPEATS if found.ok else BREAKS


def _json(found: Replayed) -> dict[str, Any]:
    record = {"ok": found.ok, **dataclasses.asdict(found)}
    if found.broken is not None:
        # JSON has no NaN.
        for side in ("expected", "got"):
            value = record["broken"][side]
            if isinstance(value, float) and not math.isfinite(value):
                record["broken"][side] = str(value)
    return record


def _lines(found: Replayed) -> list[str]:
    lines = [line for number, run in enumerate(found.runs, 1) for line in _run(number, run)]
    if found.unfinished is not None:
        lines.append(f"end of file: {found.unfinished}")
    return lines + (["every decision repeats"] if found.broken is None else _break(found.broken))


def _run(number: int, run: RunSummary) -> list[str]:
    started = datetime.fromtimestamp(run.started, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    left = f", {run.running} running and {run.waiting} waiting" if run.running or run.waiting else ""
    failed = f" ({run.failed_steps} failed)" if run.failed_steps else ""
    cancelled = f" ({run.cancels} cancelled)" if run.cancels else ""
    swapped = f", {run.swapped_blocks:,} blocks swapped" if run.swapped_blocks else ""
    return [
        f"run {number}: forkdecode {run.version}, {run.model or 'no model'}, started {started}, "
        f"{run.ended}{left}",
        f"  {run.steps:,} steps{failed}, {run.requests:,} requests{cancelled}, {run.tokens:,} tokens",
        f"  at most {run.peak_blocks:,} of {run.num_blocks:,} blocks of {run.block_size} tokens held, "
        f"{run.copies:,} copies, {run.preemptions:,} preemptions{swapped}",
    ]


def _break(broken: Break) -> list[str]:
    return [
        f"BREAKS in step {broken.step} of run {broken.run}: {_WHERE[broken.where]}",
        f"  {broken.field}: expected {broken.expected}, got {broken.got}",
        f"  requests: {', '.join(broken.requests) or 'none in particular'}",
    ]


_WHERE = {
    "file": "the file can't be read any further",
    "journal": "the journal is incomplete or inconsistent",
    "request": "a request that was accepted then is refused now",
    "schedule": "schedule() fails",
    "plan": "the plan differs from the recorded one",
    "rules": "the plan breaks a rule",
    "commit": "commit() fails",
    "events": "the events differ from the recorded ones",
    "blocks": "the block counts are wrong",
    "stats": "the counters at the end differ",
    "died": "the engine died here",
}
