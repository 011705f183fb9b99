"""How many cores there are to compute with."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores that this process may run on; all of the machine's where the system does not say, at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
