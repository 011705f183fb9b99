"""Records of a run beside the committed ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.record import command_of

NO_FOLDERS = {"simulate"}
"""Benchmarks whose model is a shape of the simulator's, which is called what it is called."""


def merge(file: Path, folder: Path, model: str | None = None) -> dict[str, int]:
    """Appends the records of `file` to those of their benchmarks in `folder`: SCRIPT.jsonl by the script that
    made them. model: what records and commands call their model instead of the folder that it lay in. A
    record that is there already is left out. -> how many came to each file. Raises ValueError, and appends
    nothing, where a line is no record or its result names a path."""
    found: dict[str, list[str]] = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        full = _cleaned(line, f"{file.name}:{number}", model)
        found.setdefault(f"{Path(full['command'].split()[0]).stem}.jsonl", []).append(json.dumps(full))
    added = {}
    for name, lines in found.items():
        path = folder / name
        there = set(path.read_text().splitlines()) if path.exists() else set()
        new = [line for line in dict.fromkeys(lines) if line not in there]
        with path.open("a") as out:
            out.writelines(f"{line}\n" for line in new)
        added[name] = len(new)
    return added


def _cleaned(line: str, where: str, model: str | None) -> dict[str, Any]:
    try:
        full: dict[str, Any] = json.loads(line)
        command, result = full["command"], full["result"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{where} is no record of a benchmark: {error!r}") from None
    if not re.match(r"\w+\.py\b", Path(command.split()[0]).name):
        raise ValueError(f"{where}: the command {command!r} does not begin with a script")
    if full.get("benchmark") in NO_FOLDERS:
        model = None
    full["command"] = command_of(command.split(), model)
    if model and result.get("model"):
        result["model"] = model
    for text in _texts(result):
        if text.startswith("/"):
            raise ValueError(f"{where}: the result names {text!r}, a path; --model NAME renames a model's")
    return full


def _texts(value: Any) -> Iterator[str]:
    """Every string in a result."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
