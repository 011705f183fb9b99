"""Which packages gpu_check's parts import. The standard library alone, for it tells what else is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from benchmarks.gpu.cases import Part

KERNELS = ("torch", "triton", "numpy")
HOST_CODE = (*KERNELS, "numba", "platformdirs")
"""Of what plans and selects on the host, which is compiled."""
ENGINE = (*HOST_CODE, "transformers", "structlog", "filelock", "psutil", "llguidance")
NEEDED = {
    "benchmarks.gpu.environment": ("torch",),
    "benchmarks.gpu.bench": ("torch",),
    "benchmarks.gpu.moves": KERNELS,
    "benchmarks.gpu.tables": HOST_CODE,
    "benchmarks.gpu.attention": HOST_CODE,
    "benchmarks.gpu.selection": HOST_CODE,
    "benchmarks.gpu.engine": ENGINE,
}
"""By the module of a part."""


def missing(part: Part) -> list[str]:
    """Packages that it needs and that are not installed."""
    return [name for name in NEEDED.get(part.module, ()) if importlib.util.find_spec(name) is None]


def missing_for(parts: Iterable[Part]) -> dict[str, list[str]]:
    """Each package that is not installed, and the names of the parts that need it."""
    found: dict[str, list[str]] = {}
    for part in parts:
        for name in missing(part):
            found.setdefault(name, []).append(part.name)
    return found


def installed(name: str) -> str | None:
    """A package's version."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def packages_table(parts: Iterable[Part]) -> str:
    """All packages, and which parts are left out for want of one."""
    lacking = missing_for(parts)
    rows = ["| package | version | parts left out |", "|---|---|---|"]
    for name in ENGINE:
        told = "MISSING" if name in lacking else installed(name)
        rows.append(f"| {name} | {told} | {'; '.join(lacking.get(name, []))} |")
    return "\n".join(rows)
