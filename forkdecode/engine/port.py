"""What callers see of an engine, wherever it runs: a thread of this process, or a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from forkdecode.errors import ForkdecodeError
from forkdecode.results import EngineStats
from forkdecode.scheduler.events import GroupEvent
from forkdecode.scheduler.request import DecodeRequest, TreeOp

Sink: TypeAlias = Callable[[GroupEvent | ForkdecodeError], None]
"""Takes a request's events, or the error that ended it, in a thread of the engine's: must not block."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request and who hears of it."""

    request: DecodeRequest
    sink: Sink


class EnginePort(Protocol):
    """All methods may be called from any thread."""

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queues requests, all or none of them. Each job's sink then gets events, the last of which
        is GroupFinished, GroupFailed or a ForkdecodeError.

        Raises CapacityError for one that this engine can never serve, InvalidRequestError for an id
        in use, UnavailableError while the engine is down or closed.
        """

    def cancel(self, request: DecodeRequest) -> None:
        """Ends this very request before its next step; no effect on one that has ended, nor on a
        later one of the same id."""

    def tree(self, op: TreeOp) -> None:
        """Shares or releases what nodes hold, between two steps, in order with submit(). Nothing is
        answered: an engine that is down holds nothing."""

    def stats(self) -> EngineStats:
        """A snapshot taken between two steps. Raises UnavailableError while the engine is down."""

    def close(self) -> None:
        """Ends what is running with EngineClosedError and stops the engine. Idempotent."""
