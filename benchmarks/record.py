"""One record format for all benchmarks: JSON lines that say what was measured, where and how."""

from __future__ import annotations

import json
import os
import platform
import subprocess
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
        "commit": commit(),
        "versions": {name: version(name) for name in ("forkdecode", "torch", "transformers", "numpy")},
    }
    line = json.dumps(full)
    if path is None:
        print(line, flush=True)
    else:
        with path.open("a") as file:
            file.write(line + "\n")
    return full


def command_of(arguments: Sequence[str], model: str | None = None) -> str:
    """A command line that can be run elsewhere: the script by its name, without the options in PLACES and
    without paths; a model's folder by its name, or as `model`."""
    kept, option = list[str](), ""
    for argument in arguments[1:]:
        name, equals, value = argument.partition("=")
        if argument.startswith("--"):
            option = "" if equals else name
            if name == "--model" and equals:
                kept.append(f"{name}={model or Path(value).name}")
            elif name not in PLACES and "/" not in value:
                kept.append(argument)
        elif option == "--model":
            kept.append(model or Path(argument).name)
        elif option not in PLACES and "/" not in argument:
            kept.append(argument)
        elif kept and kept[-1] == option:
            kept.pop()
    return " ".join([Path(arguments[0]).name, *kept])


def commit() -> str | None:
    """Of the checkout that this file is in, "+" after it where tracked files differ; None without one."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=9", "--dirty=+"]
    try:
        found = subprocess.run([*git, "--exclude=*"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def machine() -> dict[str, Any]:
    """What the numbers depend on, without naming the host. load: the average number of threads that ran or
    wanted to in the minute before, the benchmark's own included."""
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
        "load": round(os.getloadavg()[0], 1),
    }
