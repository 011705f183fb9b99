"""What tests of tree sessions share: how time passes, and how they end."""

from __future__ import annotations

import grpc

from forkdecode.types import Options
from tests.server.servers import Running
from tests.server.tree_calls import RawSession, in_loop

SHORT = Options(max_tokens=3, ignore_eos=True)


class Clock:
    """Seconds, as tests have them pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def list_until_ended(session: RawSession) -> None:
    """Reads what its server ends the session with."""
    code, _ = session.status()
    assert code is grpc.StatusCode.CANCELLED


def sweep(server: Running) -> int:
    """Has the server look for what is late; how many sessions there are then."""
    in_loop(server, server.server.trees.sweep)
    return server.server.trees.count
