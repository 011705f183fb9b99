"""The benchmark of masks runs, and finds its two ways equal."""

from __future__ import annotations

from argparse import Namespace

from benchmarks.allowed import measured


def test_every_way_is_measured() -> None:
    found = measured(Namespace(rows=6, vocab=100, listed=[3, 50], threads=1))["milliseconds"]
    assert {"plain", "listed 3", "dense 3", "listed 50", "dense 50", "bits, half", "bits, few"} == set(found)
