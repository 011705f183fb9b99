"""Threads are made for the cores that a process may use."""

from __future__ import annotations

import os

import pytest

from forkdecode.cores import usable_cores


def test_are_those_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cores() == len(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5})
    assert usable_cores() == 2


@pytest.mark.parametrize(("count", "cores"), [(8, 8), (None, 1)])
def test_are_the_machines_where_no_system_says(
    monkeypatch: pytest.MonkeyPatch, count: int | None, cores: int
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert usable_cores() == cores
