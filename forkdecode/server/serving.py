"""What requests and tree sessions are served with."""

from __future__ import annotations

from dataclasses import dataclass

from forkdecode.engine.port import EnginePort
from forkdecode.requests.prepare import RequestMaker
from forkdecode.server.running import Running
from forkdecode.server.stream import Courier
from forkdecode.server.workers import Workers


@dataclass(frozen=True, slots=True)
class Serving:
    """engine: runs what `requests` makes. running: counts it by caller. courier: brings its events to the
    loop. workers: what takes long is done there."""

    engine: EnginePort
    requests: RequestMaker
    running: Running
    courier: Courier
    workers: Workers
