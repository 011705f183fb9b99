"""How long a GPU waits for the host in a step: from the last kernel of one step to the first of the next, and
between kernels where the host launches them too slowly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

LEAST_US = 10.0
"""Shorter gaps are those between two kernels of a graph, in which no host is waited for."""
TO_HOST, TO_DEVICE = "Memcpy DtoH", "Memcpy HtoD"


@dataclass(frozen=True)
class Span:
    """Something that a GPU did, in microseconds of one clock; name: a kernel's, or what was copied where."""

    name: str
    start: float
    end: float


def idle_of(work: Callable[[], object]) -> float | None:
    """Median microseconds a step in which the GPU has no kernel to run. The profiler that finds them makes
    launches slower, so this is an upper bound. None where it sees no steps."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    return idle_us(
        Span(event.name, event.time_range.start, event.time_range.end)
        for event in seen.events() or ()
        if event.device_type.name != "CPU" and not event.is_user_annotation
    )


def idle_us(spans: Iterable[Span]) -> float | None:
    """The same of what a GPU did. A step ends with a copy to the host. Copies from and to the host are part
    of what is waited for. None for fewer than three steps."""
    steps = idle_by_step(sorted(spans, key=lambda span: span.start))
    return float(np.median(steps[1:])) if len(steps) > 2 else None


def idle_by_step(spans: Sequence[Span]) -> list[float]:
    """Of each step, from the end of the kernels of the step before; the first from its own first kernel."""
    steps: list[float] = []
    idle, busy_until, read_back = 0.0, float("inf"), False
    for span in spans:
        if span.name.startswith(TO_HOST):
            read_back = True
        if span.name.startswith((TO_HOST, TO_DEVICE)):
            continue
        if read_back:
            steps.append(idle)
            idle, read_back = 0.0, False
        gap = span.start - busy_until
        idle += gap if gap > LEAST_US else 0.0
        busy_until = span.end if busy_until == float("inf") else max(busy_until, span.end)
    return [*steps, idle] if read_back else steps
