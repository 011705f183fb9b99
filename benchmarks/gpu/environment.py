"""What gpu_check finds on a machine: versions, the device, and the packages that are missing."""

from __future__ import annotations

import importlib.util
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.gpu.bench import Bench

NEEDED = {
    "torch": "all",
    "triton": "all",
    "numpy": "all",
    "numba": "all but block moves",
    "platformdirs": "all but block moves",
    "transformers": "the engine",
    "structlog": "the engine",
    "filelock": "the engine",
    "psutil": "the engine",
    "llguidance": "the engine",
}
"""Packages that parts of gpu_check import, and which parts."""


def environment(bench: Bench) -> dict[str, Any]:
    """What a machine has and lacks. Where it has no GPU that torch can use, `device` says why."""
    missing = {name: parts for name, parts in NEEDED.items() if importlib.util.find_spec(name) is None}
    return {
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in NEEDED},
        "missing": missing,
        "cores": len(os.sched_getaffinity(0)),
        "ok": not missing,
        **_device(bench),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


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
