"""The engine process's word that it lives, whatever its step takes."""

from __future__ import annotations

import threading

from forkdecode.engine.thread import EngineThread
from forkdecode.wire.frames import Outbox
from forkdecode.wire.messages import Beat
from forkdecode.wire.records import CODEC


class Heartbeat:
    """Says a word every `interval` seconds, in a thread of its own, until close(). A Watch hears it."""

    def __init__(self, outbox: Outbox, interval: float) -> None:
        self._outbox = outbox
        self._interval = interval
        self._engine: EngineThread | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forkdecode-heartbeat", daemon=True)
        self._thread.start()

    def watch(self, engine: EngineThread) -> None:
        """From now on it tells how long this engine's step has taken."""
        self._engine = engine

    def close(self) -> None:
        """Idempotent."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            engine = self._engine
            self._outbox.put(CODEC.encode(Beat(0.0 if engine is None else engine.step_seconds())))
            if self._closed.wait(self._interval):
                return
