"""An engine whose device is lost ends, so that whoever keeps it can start another."""

from __future__ import annotations

import queue
from typing import Any

import pytest

from forkdecode.engine.thread import EngineThread, Job
from forkdecode.errors import EngineClosedError
from forkdecode.step import DeviceLostError, StepOutput, StepPlan
from forkdecode.types import Greedy
from tests.scheduler.engines import request, toy_engine


class Lost:
    """A runner whose device does nothing any more."""

    def execute(self, plan: StepPlan) -> StepOutput:
        raise DeviceLostError("cuda:0 does not answer any more")


def test_a_lost_device_ends_the_engine() -> None:
    engine = toy_engine()
    engine._runner = Lost()
    thread = EngineThread(engine)
    box: queue.SimpleQueue[Any] = queue.SimpleQueue()
    thread.submit([Job(request(name, [3], Greedy(), max_tokens=9), box.put) for name in ("a", "b")])
    for _ in range(2):
        error = box.get(timeout=60)
        assert isinstance(error, EngineClosedError)
        assert "cuda:0 does not answer any more" in str(error)
        assert isinstance(error.__cause__, DeviceLostError)
    thread.wait()
    with pytest.raises(EngineClosedError):
        thread.stats()
