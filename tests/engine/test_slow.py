"""Whoever waits for long is told for what."""

from __future__ import annotations

import threading

from forkdecode.engine.slow import told_if_slow


def test_what_takes_long_is_told_while_it_does() -> None:
    told = threading.Event()
    with told_if_slow(told.set, seconds=0.001):
        assert told.wait(60)


def test_what_is_quick_is_not_told_and_leaves_no_thread() -> None:
    told, before = threading.Event(), set(threading.enumerate())
    with told_if_slow(told.set, seconds=3600):
        [timer] = set(threading.enumerate()) - before
    timer.join(60)
    assert not timer.is_alive()
    assert not told.is_set()
