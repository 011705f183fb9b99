"""One record format for all benchmarks: JSON lines that say what was measured, where and how."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any


def record(benchmark: str, result: dict[str, Any], path: Path | None) -> dict[str, Any]:
    """Appends one record to `path`, or prints it when there is none; returns it. "seed" is the result's,
    None where nothing is drawn at random; the command's paths are shortened to their names."""
    full = {
        "benchmark": benchmark,
        "result": result,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": " ".join(Path(a).name if "/" in a else a for a in sys.argv),
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
