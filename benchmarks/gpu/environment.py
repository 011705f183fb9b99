"""What gpu_check finds on a machine: versions, the device, and the packages that are missing."""

from __future__ import annotations

import os
import platform
from typing import Any

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.cases import parts
from benchmarks.gpu.packages import ENGINE, installed, missing_for


def environment(bench: Bench) -> dict[str, Any]:
    """What a machine has and lacks. Where it has no GPU that torch can use, `device` says why."""
    missing = missing_for(parts(bench.rehearse))
    return {
        "python": platform.python_version(),
        "versions": {name: installed(name) for name in ENGINE},
        "missing": missing,
        "cores": len(os.sched_getaffinity(0)),
        "ok": not missing,
        **_device(bench),
    }


def _device(bench: Bench) -> dict[str, Any]:
    if bench.rehearse:
        return {"device": "interpreter"}
    import torch

    try:
        of = torch.cuda.get_device_properties(0)
    except (RuntimeError, AssertionError) as error:  # torch asserts where it was built without the device
        return {"device": f"no GPU: {error}", "ok": False}
    return {
        "device": of.name,
        "capability": f"{of.major}.{of.minor}",
        "processors": of.multi_processor_count,
        "memory": of.total_memory,
        "cuda": torch.version.cuda,
    }
