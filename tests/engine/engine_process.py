"""A tiny model on disk, engine processes that serve it, and who waits for them."""

from __future__ import annotations

import os
import queue
import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkdecode.config import EngineConfig
from forkdecode.engine.port import EnginePort, Job
from forkdecode.engine.remote import EngineProcess
from forkdecode.errors import ForkdecodeError
from forkdecode.scheduler.events import GroupFailed, GroupFinished
from forkdecode.scheduler.request import DecodeRequest

if TYPE_CHECKING:
    from forkdecode.requests.prepare import Prepared

PATIENCE = 120.0
"""Seconds; a hang guard, for machines that are busy."""
CONFIG = EngineConfig(num_blocks=4096, block_size=4, max_waiting=1000)


class Client:
    """Sends requests and listens."""

    def __init__(self, engine: EnginePort) -> None:
        self.engine = engine
        self.boxes: dict[str, queue.SimpleQueue[Any]] = {}

    def job(self, request: DecodeRequest) -> Job:
        box: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.boxes[request.request_id] = box
        return Job(request, box.put)

    def send(self, *prepared: Prepared) -> None:
        self.engine.submit([self.job(one.request) for one in prepared])

    def events(self, name: str) -> list[Any]:
        """All events of a request, the last included."""
        found = [self.boxes[name].get(timeout=PATIENCE)]
        while not isinstance(found[-1], (GroupFinished, GroupFailed, ForkdecodeError)):
            found.append(self.boxes[name].get(timeout=PATIENCE))
        return found

    def last(self, name: str) -> Any:
        return self.events(name)[-1]


class States:
    """What an engine process says of itself, in order."""

    def __init__(self, engine: EngineProcess) -> None:
        self._heard: queue.SimpleQueue[str] = queue.SimpleQueue()
        engine.on_state(self._heard.put)

    def wait_for(self, state: str) -> None:
        while self._heard.get(timeout=PATIENCE) != state:
            pass


@contextmanager
def started(folder: Path, config: EngineConfig = CONFIG, **more: Any) -> Iterator[EngineProcess]:
    engine = EngineProcess(folder, dtype="float32", threads=1, config=config, **more)
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


def wait_until_gone(pid: int) -> None:
    """Until a process has ended, whoever's child it is."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], PATIENCE)[0], f"process {pid} lives on"
    finally:
        os.close(descriptor)
