"""One tree session in the server: one thing at a time is done with it, and one connection hears of it."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import secrets
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from forkdecode.errors import ForkdecodeError, invalid
from forkdecode.server.auth import Caller
from forkdecode.server.stream import Courier
from forkdecode.server.tree_feed import TreeFeed
from forkdecode.server.workers import LARGE, Workers
from forkdecode.tree.effort import Effort
from forkdecode.tree.running import Emit
from forkdecode.tree.session import EngineItem, Post, TreeSession
from forkdecode.tree_types import (
    Accepted,
    Command,
    Done,
    Exported,
    NodeScored,
    NodesPruned,
    Refused,
    TreeEvent,
    TreeLimits,
    TreeOpened,
)

OpenSession: TypeAlias = Callable[[Emit, Post], TreeSession]
"""Makes a session that emits and posts there. Raises InvalidRequestError."""
MAX_WAITING = 256
"""Commands that may wait to be carried out before no more are read."""
MAX_WAITING_BYTES = 4 * 2**20
"""Bytes of them, as they are sent."""
_Answer: TypeAlias = Accepted | Refused | Done | NodeScored | NodesPruned | Exported


@dataclass(slots=True)
class _Work:
    """What is done in a worker, and what the loop does with what came of it. effort: what it makes do, asked
    when its turn has come. size: of the command."""

    do: Callable[[], Any]
    then: Callable[[Any], None]
    effort: Callable[[], Effort]
    size: int = 0


class HostedTree:
    """A session from its opening to its end. All but what it hands to others belongs to the loop.

    The engine's events wait while a worker carries out a command. Commands get ids of the host's own, for a
    client that resumes may use those of commands that still run.
    """

    def __init__(
        self,
        caller: Caller,
        limits: TreeLimits,
        courier: Courier,
        workers: Workers,
        clock: Callable[[], float],
        heard: Callable[[HostedTree], None],
    ) -> None:
        """heard: is told when something of it has ended, or all of it."""
        self.caller = caller
        self.limits = limits
        self.secret = secrets.token_urlsafe(32)
        self.detached_at: float | None = None
        """When its connection was lost; None while it has one."""
        self.is_known = False
        """Its first event has been sent: somebody may know its secret."""
        self.is_used = False
        """A command has come."""
        self._courier = courier
        self._workers = workers
        self._clock = clock
        self._session: TreeSession | None = None
        self._feed: TreeFeed | None = None
        self._connected: TreeFeed | None = None
        """The connection that there is; `_feed` is the same once its first event is there."""
        self._emitted: list[TreeEvent] = []
        self._works: deque[_Work] = deque()
        self._works_bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._waiting: list[EngineItem] = []
        self._busy = False
        self._ended = False
        self._error: BaseException | None = None
        self._heard = heard
        self._ids = itertools.count()
        self._asked: dict[int, tuple[TreeFeed, int]] = {}
        """The feed and the client's id of each command that has not ended, by the host's."""
        self._running: dict[int, int] = {}
        """The host's ids of the commands of the present feed, by the client's."""

    @property
    def session(self) -> TreeSession:
        """Once it is open."""
        assert self._session is not None, "it has been opened"
        return self._session

    @property
    def is_open(self) -> bool:
        """Whether open() has made the session."""
        return self._session is not None

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is being done, here or in the engine."""
        return not self._busy and not self._works and not self.session.is_running

    @property
    def ended(self) -> bool:
        """Whether end() was called."""
        return self._ended

    @property
    def error(self) -> BaseException | None:
        """What it was ended with, if with anything."""
        return self._error

    async def open(self, make: OpenSession, size: int) -> None:
        """Makes the session, in a worker: a prompt, of about `size` bytes, is tokenized."""
        loop, worker = asyncio.get_running_loop(), self._workers.of(size)
        self._session = await loop.run_in_executor(worker, make, self._emitted.append, self._post)

    def is_secret(self, given: str) -> bool:
        """Whether it is the session's, in a time that tells nothing."""
        return hmac.compare_digest(self.secret.encode(), given.encode())

    def attach(self, feed: TreeFeed, opened: Callable[[TreeOpened], TreeOpened]) -> None:
        """From what it is when all commands that were sent are carried out, `feed` hears of it; `opened`
        completes its first event. Who heard of it before must have been ended."""
        self.detached_at = None
        self._feed, self._connected, self._running = None, feed, {}

        def begin(snapshot: TreeOpened) -> None:
            if feed is self._connected:
                self._feed = feed
                feed.add([opened(snapshot)])

        self._do(_Work(self.session.snapshot, begin, self.session.snapshot_effort))

    def detach(self, feed: TreeFeed) -> None:
        """Nobody hears any more, if it was `feed` that did."""
        if feed is self._connected:
            self._feed = self._connected = None
            self.detached_at = self._clock()

    def cut(self, error: ForkdecodeError) -> None:
        """Ends the connection that it has, if any."""
        if self._connected is not None:
            self._connected.end(error)
            self.detach(self._connected)

    async def room(self) -> None:
        """Waits until few enough commands wait to be carried out. Who reads them waits for it, so that gRPC
        holds up a client that sends them quicker."""
        await self._has_room.wait()

    def command(self, feed: TreeFeed, command: Command, size: int = 0) -> ForkdecodeError | None:
        """Carries out a command of `feed`, after those before, or says why not. size: its bytes, as it was
        sent."""
        number = command.command_id
        self.is_used = True
        if self._ended or feed is not self._connected:
            return None
        if number in self._running:
            return invalid("command_id", f"{number} still runs", "an id of no running command")
        own = next(self._ids)
        self._asked[own] = feed, number
        self._running[number] = own
        numbered = replace(command, command_id=own)
        effort = partial(self.session.effort, numbered, size, LARGE)
        self._do(_Work(partial(self.session.command, numbered), lambda _: None, effort, size))
        return None

    def no_more(self, feed: TreeFeed) -> None:
        """No command of `feed` comes any more: it ends once those that came have ended."""
        feed.no_more = True
        self._settle()

    def end(self, error: BaseException | None = None) -> None:
        """Frees all it holds, as soon as no worker is busy with it; its connection ends with `error`."""
        if self._ended:
            return
        self._ended, self._error = True, error
        self._works.clear()
        self._has_room.set()
        self._waiting.clear()
        if self._connected is not None:
            self._connected.end(error)
        if not self._busy and self._session is not None:
            self._session.close()
        self._heard(self)

    def expire(self) -> None:
        """Idle nodes give up their KV after the idle TTL."""
        if not self._busy and not self._ended:
            self.session.expire()

    def deliver(self, item: EngineItem) -> None:
        """Takes an engine's event, in the loop."""
        if self._ended:
            return
        if self._busy:
            self._waiting.append(item)
        else:
            self._take([item])

    # -- one thing at a time ----------------------------------------------------------------------

    def _post(self, item: EngineItem) -> None:
        self._courier.put(self, item)

    def _do(self, work: _Work) -> None:
        if not self._ended:
            self._works.append(work)
            self._works_bytes += work.size
            self._next()
            if len(self._works) >= MAX_WAITING or self._works_bytes >= MAX_WAITING_BYTES:
                self._has_room.clear()

    def _next(self) -> None:
        if self._busy or not self._works:
            return
        work = self._works.popleft()
        self._works_bytes -= work.size
        if len(self._works) < MAX_WAITING and self._works_bytes < MAX_WAITING_BYTES:
            self._has_room.set()
        self._busy = True
        loop = asyncio.get_running_loop()
        effort = work.effort()
        done: Future[Any] = self._workers.of(effort.size, waits=effort.waits).submit(work.do)
        done.add_done_callback(lambda _: _in_loop(loop, lambda: self._worked(work, done)))

    def _worked(self, work: _Work, done: Future[Any]) -> None:
        self._busy = False
        if self._ended:
            self.session.close()
            return
        error = done.exception()
        if error is not None:
            self.end(error)
            return
        self._flush()
        work.then(done.result())
        waiting, self._waiting = self._waiting, []
        self._take(waiting)
        self._next()

    def _take(self, items: list[EngineItem]) -> None:
        try:
            for item in items:
                self.session.take(item)
        except Exception as error:  # of this session alone
            self.end(error)
            return
        self._flush()
        self._settle()

    def _settle(self) -> None:
        if self._connected is not None and self._connected.no_more and not self._running:
            self._connected.end()
        self._heard(self)

    def _flush(self) -> None:
        """What the session has told goes to who hears of it."""
        events = [event for told in self._emitted if (event := self._addressed(told)) is not None]
        self._emitted.clear()
        if self._feed is not None and events:
            self._feed.add(events)

    def _addressed(self, event: TreeEvent) -> TreeEvent | None:
        """With the client's id; None for an answer to an earlier connection."""
        if not isinstance(event, _Answer):
            return event
        feed, number = self._asked[event.command_id]
        if isinstance(event, (Refused, Done)):
            del self._asked[event.command_id]
            if feed is self._feed:
                self._running.pop(number, None)
        return replace(event, command_id=number) if feed is self._feed else None


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has been closed, and the server with it
        loop.call_soon_threadsafe(call)
