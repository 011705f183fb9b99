"""What is small waits for nothing that is large, nor for what waits itself."""

from __future__ import annotations

import threading

from forkdecode.server.workers import LARGE, Workers


def test_kinds_of_work_hold_up_their_own_alone() -> None:
    workers, go = Workers("test"), threading.Event()
    kinds = {(size, waits) for size in (0, LARGE) for waits in (False, True)}
    try:
        for held in kinds:
            go.clear()
            size, waits = held
            late = [workers.of(size, waits=waits).submit(go.wait, 60) for _ in range(9)]
            for size, waits in kinds - {held}:
                assert workers.of(size, waits=waits).submit(lambda: True).result(60)
            go.set()
            assert all(one.result(60) for one in late)
    finally:
        go.set()
        workers.close()
        workers.close()
