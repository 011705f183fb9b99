"""Re-runs the decisions of a step journal without a model, and finds where they part from the record.

A fresh scheduler gets the recorded requests, cancels and answers at their recorded places. After each
schedule() its plan is compared with the recorded one and checked (shadow.py); after each commit() its
events are compared, and every block's count is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from forkdecode.checks import shown
from forkdecode.engine.journal import Run
from forkdecode.engine.journal_file import JournalReader, wrong_version
from forkdecode.engine.replay_checks import Broken
from forkdecode.engine.replay_run import RunReplay, RunSummary
from forkdecode.errors import invalid
from forkdecode.wire.records import CODEC


@dataclass(frozen=True, slots=True)
class Break:
    """The first thing that is not as it should be. run: counted from 1. requests: those concerned.

    where: "file", "journal" (records out of order, or a gap), "request", "schedule", "plan" (it differs
    from the recorded one), "rules" (it breaks a rule), "commit", "events", "blocks", "stats", "died".
    """

    run: int
    step: int
    where: str
    field: str
    expected: str | float | None
    got: str | float | None
    requests: tuple[str, ...]

    def __str__(self) -> str:
        place = f"run {self.run}, step {self.step}, {self.where}"
        text = f"{place}: {self.field}: expected {self.expected}, got {self.got}"
        return text + (f"; requests: {', '.join(self.requests)}" if self.requests else "")


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a journal held. unfinished: of a file whose writer was cut off, what its end looks like."""

    runs: tuple[RunSummary, ...]
    broken: Break | None = None
    unfinished: str | None = None

    @property
    def ok(self) -> bool:
        return self.broken is None


Watch: TypeAlias = Callable[[RunReplay, str, Sequence[Any]], None]
"""Told of each record once it is replayed: its run, its kind, its parts."""


def replay(
    path: Path,
    until: int | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    watch: Watch = lambda run, kind, parts: None,
) -> Replayed:
    """Replays every run of a journal, each up to step `until`, to the first break.

    clock: the scheduler's; it times requests and decides nothing. Raises InvalidRequestError for a file
    that is no journal or another version's, OSError for one that can't be read.
    """
    reader = JournalReader(path)
    runs: list[RunReplay] = []
    try:
        for kind, *parts in _records(reader):
            if kind == "run":
                runs.append(RunReplay(_run(parts), clock))
            elif not runs:
                raise invalid("journal", f"begins with {kind!r}", "a file that begins with a run")
            elif until is None or not runs[-1].is_past(until):
                runs[-1].take(kind, parts)
                watch(runs[-1], kind, parts)
        if reader.damage is not None and not reader.damage.cut_off:
            raise Broken("file", "record", "a whole record", str(reader.damage))
    except Broken as found:
        return Replayed(_summaries(runs), _located(found, runs), _unfinished(reader))
    return Replayed(_summaries(runs), None, _unfinished(reader))


def _records(reader: JournalReader) -> Iterator[Sequence[Any]]:
    for number, payload in enumerate(reader, 1):
        try:
            record = CODEC.decode(payload)
        except ValueError as error:
            raise Broken("file", f"record {number}", "a record", str(error)) from error
        if type(record) is not tuple or not record or not isinstance(record[0], str):
            raise Broken("file", f"record {number}", "a record", type(record).__name__)
        yield record


def _run(parts: Sequence[Any]) -> Run:
    try:
        schema, version, rest = parts
    except ValueError:
        raise Broken("file", "run", "3 parts", len(parts)) from None
    if schema != CODEC.schema:
        raise wrong_version(f"forkdecode {version} wrote it, whose records differ from this version's")
    try:
        return Run.read(version, rest)
    except (ValueError, TypeError) as error:
        raise Broken("file", "run", "an engine's configuration", str(error)) from error


def _summaries(runs: Sequence[RunReplay]) -> tuple[RunSummary, ...]:
    return tuple(run.summary() for run in runs)


def _located(found: Broken, runs: Sequence[RunReplay]) -> Break:
    step = runs[-1].step if runs else 0
    expected, got = _plain(found.expected), _plain(found.got)
    return Break(len(runs), step, found.where, found.field, expected, got, found.requests)


def _plain(value: Any) -> str | float | None:
    """What JSON can hold."""
    return value if value is None or isinstance(value, (str, int, float)) else shown(value)


def _unfinished(reader: JournalReader) -> str | None:
    return str(reader.damage) if reader.damage is not None and reader.damage.cut_off else None
