"""What the engine process tells the front end of its requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

from forkdecode.engine.port import Sink
from forkdecode.errors import CapacityError, ForkdecodeError, GroupFailedError
from forkdecode.logs import get_logger
from forkdecode.scheduler.events import GroupEvent, GroupFailed, GroupFinished
from forkdecode.wire.frames import Outbox, TooLongError
from forkdecode.wire.messages import Events, Refused, Stats
from forkdecode.wire.records import CODEC

_log = get_logger(__name__)


class Outgoing:
    """Events: collected over a step, sent as one frame. One that can't be sent, because it is too large,
    ends its request and no other."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._pending: list[_Told] = []

    def sink(self, request_id: str, ended: Callable[[], object], cancel: Callable[[], object]) -> Sink:
        """One request's. ended: is told of its last event. cancel: ends it early. All are called in the
        engine's thread, as flush is."""
        voice = _Voice(request_id, cancel)

        def take(event: GroupEvent | ForkdecodeError) -> None:
            if not voice.is_lost:
                self._pending.append((_crossing(request_id, event), voice))
            if isinstance(event, (GroupFinished, GroupFailed, ForkdecodeError)):
                ended()

        return take

    def flush(self) -> None:
        """Sends what has come together. Waits while the front end is too far behind."""
        if self._pending:
            told, self._pending = self._pending, []
            self._put(told)
            self._outbox.room()

    def send(self, message: Stats | Events) -> None:
        """Sends at once, from any thread."""
        self._outbox.put(CODEC.encode(message))

    def _put(self, told: list[_Told]) -> None:
        try:
            self.send(Events(tuple(event for event, _ in told)))
        except Exception as error:
            if len(told) > 1:
                for one in told:
                    self._put([one])
                return
            [(_, voice)] = told
            if not voice.is_lost:
                self.send(Events((voice.lose(error),)))


@dataclasses.dataclass(eq=False, slots=True)
class _Voice:
    """One request's. is_lost: the front end was told its end, and hears no more of it."""

    request_id: str
    cancel: Callable[[], object]
    is_lost: bool = False

    def lose(self, error: Exception) -> Refused:
        self.is_lost = True
        self.cancel()
        if isinstance(error, (TooLongError, MemoryError)):
            problem = f"the result is too large: {error}"
            return Refused(self.request_id, CapacityError(problem, limit=_LESS, request_id=self.request_id))
        _log.error("event_broken", request_id=self.request_id, exc_info=error)
        problem = f"internal error: {type(error).__name__}: {error}"
        return Refused(self.request_id, GroupFailedError(problem, request_id=self.request_id))


_LESS = "fewer candidates, tokens or log-probabilities"
_Told: TypeAlias = tuple[GroupEvent | Refused, _Voice]


def _crossing(request_id: str, event: GroupEvent | ForkdecodeError) -> GroupEvent | Refused:
    if isinstance(event, ForkdecodeError):
        return Refused(request_id, event)
    if isinstance(event, GroupFailed):  # nobody there asks for what it had, but for whose KV is kept
        return dataclasses.replace(event, candidates=())
    return event
