"""What one connection's reader has not taken yet of a tree session's events. Belongs to the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from forkdecode.errors import ForkdecodeError
from forkdecode.results import TokenLogprob
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.server.stream import LOGPROB_BYTES, MAX_PENDING_BYTES, TOKEN_BYTES, too_slow
from forkdecode.tree_types import (
    Accepted,
    Exported,
    NodeDelta,
    NodeInfo,
    NodeScored,
    Refused,
    TreeEvent,
    TreeOpened,
)

_EVENT_BYTES = 256
"""About what an event takes besides its tokens."""


class TreeFeed:
    """Events wait here merged: of each node the tokens of several steps as one delta, which is where its
    first was. So nothing comes later than it would have, and a node's end after all its tokens."""

    def __init__(self, name: str) -> None:
        """name: the session's, for errors."""
        self.weight = 0
        """About how many bytes wait."""
        self.taken = 0
        """About how many were taken last."""
        self._allowed = MAX_PENDING_BYTES
        self.no_more = False
        """Its client sends nothing any more."""
        self.begun = asyncio.Event()
        """The session has told what it is: nothing may come before that."""
        self.asked: dict[int, pb.TreeCommand] = {}
        """Commands of the session that are neither accepted nor refused yet, by the client's id."""
        self.refused: dict[int, pb.TreeCommand] = {}
        """The commands that are refused among the events taken last, by the event's place."""
        self.name = name
        self._pending: list[TreeEvent | _Growth] = []
        self._growths: dict[int, _Growth] = {}
        self._refused: dict[int, pb.TreeCommand] = {}
        self._ended = False
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    def add(self, events: Iterable[TreeEvent]) -> None:
        """Takes events. Ends with CapacityError when too much waits."""
        if self._ended:
            return
        for event in events:
            if isinstance(event, (Accepted, Refused)):
                message = self.asked.pop(event.command_id, None)
                if message is not None and isinstance(event, Refused):
                    self._keep(message)
            self._append(event)
        self._bound()

    def refuse(self, message: pb.TreeCommand, error: ForkdecodeError) -> None:
        """Takes the refusal of a command that is not the session's. Its id may be that of one that is."""
        if not self._ended:
            self._keep(message)
            self._append(Refused(message.command_id, error))
            self._bound()

    def end(self, error: BaseException | None = None) -> None:
        """What waits is the last, then comes `error`."""
        if not self._ended:
            self._ended, self._error = True, error
            self._wake()

    async def take(self) -> list[TreeEvent] | None:
        """Waits for events and takes all there are; None at the end. Raises what it ended with."""
        while not self._pending and not self._ended:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if not self._pending:
            if self._error is not None:
                raise self._error
            return None
        events = [one.event() if isinstance(one, _Growth) else one for one in self._pending]
        self._pending.clear()
        self._growths.clear()
        self.refused, self._refused = self._refused, {}
        self.taken, self.weight, self._allowed = self.weight, 0, MAX_PENDING_BYTES
        return events

    def _append(self, event: TreeEvent) -> None:
        self.weight += event_bytes(event)
        if isinstance(event, TreeOpened):  # a session of many tokens can be resumed all the same
            self._allowed += event_bytes(event)
            self.begun.set()
        if not isinstance(event, NodeDelta):
            self._pending.append(event)
        elif event.node in self._growths:
            self._growths[event.node].add(event)
        else:
            self._growths[event.node] = growth = _Growth(event)
            self._pending.append(growth)

    def _keep(self, message: pb.TreeCommand) -> None:
        """The next event is of its refusal."""
        self._refused[len(self._pending)] = message
        self.weight += message.ByteSize()

    def _bound(self) -> None:
        if self.weight > self._allowed:
            self.end(too_slow(f"more than {MAX_PENDING_BYTES >> 20} MiB of its events wait", self.name))
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Growth:
    """Deltas of one node."""

    def __init__(self, first: NodeDelta) -> None:
        self._node = first.node
        self._token_ids: list[int] = []
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self.add(first)

    def add(self, delta: NodeDelta) -> None:
        self._token_ids += delta.token_ids
        self._texts.append(delta.text)
        self._logprobs += delta.logprobs or ()

    def event(self) -> NodeDelta:
        logprobs = tuple(self._logprobs) or None
        return NodeDelta(self._node, tuple(self._token_ids), "".join(self._texts), logprobs)


def event_bytes(event: TreeEvent) -> int:
    """About how much memory an event takes while it waits."""
    if isinstance(event, NodeDelta):
        return TOKEN_BYTES * len(event.token_ids) + _logprob_bytes(event.logprobs or ())
    if isinstance(event, (Accepted, TreeOpened)):
        return _EVENT_BYTES + sum(map(_info_bytes, event.nodes))
    if isinstance(event, NodeScored):
        return _EVENT_BYTES + sum(
            TOKEN_BYTES * len(one.token_ids) + _logprob_bytes(one.logprobs) for one in event.continuations
        )
    if isinstance(event, Exported):
        return sum(_EVENT_BYTES + TOKEN_BYTES * len(path.token_ids) for path in event.paths)
    return _EVENT_BYTES


def _info_bytes(info: NodeInfo) -> int:
    return _EVENT_BYTES + TOKEN_BYTES * (len(info.token_ids) + len(info.before_ids))


def _logprob_bytes(logprobs: Iterable[TokenLogprob]) -> int:
    return LOGPROB_BYTES * sum(2 + len(one.top) + len(one.top_processed) for one in logprobs)
