"""One record format for all benchmarks: JSON lines that say what was measured, where and how."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

PLACES = {"--record", "--json", "--checkpoint", "--log", "--peers"}
"""Options that say where something lies or goes, and change no result."""


def record(benchmark: str, result: dict[str, Any], path: Path | None) -> dict[str, Any]:
    """Appends one record to `path`, or prints it when there is none; returns it. "seed" is the result's,
    None where nothing is drawn at random; the command names no place of this machine, see `command_of`."""
    full = {
        "benchmark": benchmark,
        "result": result,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": command_of(sys.argv),
        "seed": result.get("seed"),
        "machine": machine(),
        "versions": {name: version(name) for name in ("forkdecode", "torch", "transformers", "numpy")},
    }
    line = json.dumps(full)
    if path is None:
        print(line, flush=True)
    else:
        with path.open("a") as file:
            file.write(line + "\n")
    return full


def command_of(arguments: Sequence[str]) -> str:
    """A command line that can be run elsewhere: without the options in PLACES, and where a folder was given
    (a model's) without it and its option, so that the default stands; the script by its name."""
    script, kept = Path(arguments[0]).name, list[str]()
    option = ""
    for argument in arguments[1:]:
        name, given, value = argument.partition("=")
        if argument.startswith("--"):
            option = "" if given else name
            if name in PLACES or "/" in value:
                continue
        elif option in PLACES:
            continue
        elif "/" in argument:
            if kept and kept[-1] == option:
                kept.pop()
            continue
        kept.append(argument)
    return " ".join([script, *kept])


def machine() -> dict[str, Any]:
    """What the numbers depend on, without naming the host."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        info = ""
    lines = (line.partition(":") for line in info.splitlines())
    fields = {key.strip(): value.strip() for key, _, value in lines}
    flags = set(fields.get("flags", "").split())
    wanted = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    return {
        "cpu": fields.get("model name", platform.processor()),
        "cores": len(os.sched_getaffinity(0)),
        "features": [flag for flag in wanted if flag in flags],
        "python": platform.python_version(),
    }
