"""What a GPU did, as spans, and how long it waited for the host in each step."""

from __future__ import annotations

import pytest

from benchmarks.gpu.idle import Span, idle_by_step, idle_us


def step(begin: float, *, wait: float = 0.0) -> list[Span]:
    """40 us of a graph, `wait` until a selection of 20, and its copy to the host, with one to the device
    before."""
    selection = begin + 55 + wait
    return [
        Span("Memcpy HtoD (Pinned -> Device)", begin, begin + 5),
        Span("attention", begin + 10, begin + 30),
        Span("mlp", begin + 32, begin + 50),
        Span("select", selection, selection + 20),
        Span("Memcpy DtoH (Device -> Pinned)", selection + 21, selection + 23),
    ]


def test_is_what_no_kernel_fills_copies_included() -> None:
    spans = [*step(0), *step(200), *step(400, wait=30)]
    # A kernel at 10 of each step; the last one ends at 75, in the third step at 105.
    assert idle_by_step(spans) == [0, 200 + 10 - 75, 200 + 10 - 75 + 35]


def test_is_of_the_middle_step() -> None:
    spans = [*step(0), *step(150), *step(350), *step(10_000)]
    assert idle_us(reversed(spans)) == pytest.approx(350 + 10 - (150 + 75))


def test_kernels_side_by_side_leave_no_gap() -> None:
    spans = [Span("long", 0, 100), Span("short", 10, 20), Span("next", 105, 110)]
    assert idle_by_step([*spans, Span("Memcpy DtoH", 111, 112)]) == [0]


def test_what_has_no_steps_has_none() -> None:
    assert idle_us([]) is None
    assert idle_us(step(0)) is None
