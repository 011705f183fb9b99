"""All tree sessions of a server: how many there may be, who may resume them, and when they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from forkdecode.checks import shown
from forkdecode.errors import (
    CancelledError,
    CapacityError,
    ForkdecodeError,
    QueueFullError,
    invalid,
    own,
)
from forkdecode.rpc.convert_tree_commands import OpenCall, ResumeCall
from forkdecode.server.auth import Caller
from forkdecode.server.running import BUSY_RETRY, going_down
from forkdecode.server.serving import Serving
from forkdecode.server.settings import TreeSettings
from forkdecode.server.tree_feed import TreeFeed
from forkdecode.server.tree_host import HostedTree
from forkdecode.server.tree_port import ChargedPort
from forkdecode.tree.running import Emit
from forkdecode.tree.session import Post, TreeSession
from forkdecode.tree_types import TreeLimits, TreeOpened

SWEEP = 1.0
"""Seconds between two looks at what has been idle for too long."""


class Trees:
    """The sessions there are. Belongs to the loop, but for what counts them."""

    def __init__(
        self,
        settings: TreeSettings,
        serving: Serving,
        *,
        block_size: int,
        max_command_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._engine = serving.engine
        self._requests = serving.requests
        self._running = serving.running
        self._courier = serving.courier
        self._workers = serving.workers
        self._block_size = block_size
        self._max_command_bytes = max_command_bytes
        self._clock = clock
        self._hosts: set[HostedTree] = set()
        self._named: dict[str, HostedTree] = {}
        self._draining = False
        self._timer: asyncio.TimerHandle | None = None

    # -- for connections --------------------------------------------------------------------------

    async def open(self, call: OpenCall, caller: Caller, size: int) -> tuple[HostedTree, TreeFeed]:
        """Begins a session. size: bytes of the call, as it was sent. Raises InvalidRequestError for a wrong
        prompt, QueueFullError when there are enough, CapacityError for more than its caller may have."""
        host = self._place(call, caller)
        try:
            await host.open(lambda emit, post: self._session(host, call, emit, post), size)
        except BaseException:
            host.end()
            raise
        if host.ended:
            raise host.error or going_down()
        self._named[host.session.name] = host
        self._sweep_later()
        return host, self._attach(host)

    def resume(self, call: ResumeCall, caller: Caller) -> tuple[HostedTree, TreeFeed]:
        """Takes a session up again. Raises InvalidRequestError, which does not tell a wrong secret from a
        session that does not exist."""
        host = self._named.get(call.tree)
        known = host is not None and host.is_secret(call.secret)
        if host is None or not known or host.caller.name != caller.name:
            raise invalid(
                "tree",
                f"{shown(call.tree)} is not to be resumed: it has ended, or the secret is another's",
                f"a session that lost its connection in the last {self._settings.grace:g} seconds",
            )
        host.cut(CancelledError("the session was resumed by another connection"))
        return host, self._attach(host)

    # -- for the server ---------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Sessions. From any thread."""
        return len(self._hosts)

    @property
    def num_nodes(self) -> int:
        """Live nodes of all of them. From any thread."""
        return sum(host.session.num_nodes for host in list(self._named.values()))

    @property
    def num_detached(self) -> int:
        """Sessions that have lost their connection. From any thread."""
        return sum(host.detached_at is not None for host in list(self._named.values()))

    def sweep(self) -> None:
        """Ends what has been away or idle for too long."""
        now = self._clock()
        for host in list(self._named.values()):
            if host.detached_at is not None:
                if now - host.detached_at >= self._settings.grace:
                    host.end()
                    continue
            elif host.is_at_rest and now - host.session.last_used >= self._settings.idle:
                host.end(CancelledError(f"the session was idle for {self._settings.idle:g} seconds"))
                continue
            host.expire()

    def drain(self) -> None:
        """No command is taken any more; sessions end when what they generate has ended."""
        self._draining = True
        for host in list(self._hosts):
            self._heard(host)

    def end_all(self, error: ForkdecodeError) -> int:
        """Ends every session; how many there were."""
        hosts = list(self._hosts)
        for host in hosts:
            host.end(own(error, host.session.name if host.is_open else None))
        return len(hosts)

    @property
    def is_draining(self) -> bool:
        """Whether commands are refused."""
        return self._draining

    # -- inside -----------------------------------------------------------------------------------

    def _attach(self, host: HostedTree) -> TreeFeed:
        feed = TreeFeed(host.session.name)
        host.attach(feed, lambda opened: self._opened(host, opened))
        return feed

    def _opened(self, host: HostedTree, opened: TreeOpened) -> TreeOpened:
        return replace(
            opened,
            limits=host.limits,
            secret=host.secret,
            grace=self._settings.grace,
            idle_timeout=self._settings.idle,
            max_command_bytes=self._max_command_bytes,
        )

    def _place(self, call: OpenCall, caller: Caller) -> HostedTree:
        if self._draining:
            raise going_down()
        try:
            limits = self._granted(call, caller)
        except QueueFullError:
            if not self._end_unheard(caller):
                raise
            limits = self._granted(call, caller)
        host = HostedTree(caller, limits, self._courier, self._workers, self._clock, self._heard)
        self._hosts.add(host)
        return host

    def _end_unheard(self, caller: Caller) -> bool:
        """Ends sessions of `caller` whose connection was lost before a command came, and whether there were
        any. Their opening may not have been heard of; then nobody can resume them, and they are in the way of
        the next attempt."""
        lost = [
            host
            for host in self._hosts
            if host.caller.name == caller.name and host.detached_at is not None and not host.is_used
        ]
        for host in lost:
            host.end()
        return bool(lost)

    def _granted(self, call: OpenCall, caller: Caller) -> TreeLimits:
        """What a session may hold: what it asks for, or its caller's share, within the server's limits."""
        if len(self._hosts) >= self._settings.max_sessions:
            raise _too_many("the server", len(self._hosts), self._settings.max_sessions)
        wanted = dict(call.limits)
        others = [host for host in self._hosts if host.caller.name == caller.name]
        most = caller.limits.max_sessions
        if most is not None and len(others) >= most:
            raise _too_many(caller.name, len(others), most)
        for name, limit in (
            ("max_nodes", caller.limits.max_tree_nodes),
            ("max_blocks", caller.limits.max_tree_blocks),
        ):
            if limit is not None:
                asked = wanted.setdefault(name, max(1, limit // (most or 1)))
                _check_share(caller, name, asked, sum(getattr(h.limits, name) for h in others), limit)
        return _smaller(self._settings.limits, wanted)

    def _session(self, host: HostedTree, call: OpenCall, emit: Emit, post: Post) -> TreeSession:
        charged = host.caller.limits.max_row_tokens is not None
        return TreeSession(
            ChargedPort(self._engine, self._running, host.caller, self._block_size)
            if charged
            else self._engine,
            self._requests,
            call.opening,
            block_size=self._block_size,
            emit=emit,
            post=post,
            limits=host.limits,
            clock=self._clock,
        )

    def _heard(self, host: HostedTree) -> None:
        if host.ended:
            self._hosts.discard(host)
            self._named = {name: one for name, one in self._named.items() if one is not host}
        elif self._draining and host.is_open and host.is_at_rest:
            host.end(going_down())

    def _sweep_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SWEEP, self._sweep_now)

    def _sweep_now(self) -> None:
        self._timer = None
        self.sweep()
        if self._hosts:
            self._sweep_later()


def _smaller(own: TreeLimits, wanted: dict[str, Any]) -> TreeLimits:
    values: dict[str, Any] = {}
    for name in (one.name for one in fields(TreeLimits)):
        given = [value for value in (getattr(own, name), wanted.get(name)) if value is not None]
        values[name] = min(given) if given else None
    return TreeLimits(**values)


def _too_many(whose: str, present: int, limit: int) -> CapacityError:
    """With a time to come back, unless there never is one."""
    if not limit:
        text = f"{whose} may have no tree sessions"
        return CapacityError(text, field="max_sessions", limit="none at all")
    return QueueFullError(
        f"{whose} has {present} tree sessions open, which is its limit",
        field="max_sessions",
        limit=f"{limit} at a time",
        retry_after=BUSY_RETRY,
    )


def _check_share(caller: Caller, name: str, asked: int | float, present: int, limit: int) -> None:
    if asked + present <= limit:
        return
    text = (
        f"{name}: {asked:,} for this session beside {present:,} for {caller.name}'s others, "
        f"which may have {limit:,}; ask for less"
    )
    if asked > limit:
        raise CapacityError(text, field=name, limit=f"at most {limit:,}")
    raise QueueFullError(text, field=name, limit=f"at most {limit:,} in all", retry_after=BUSY_RETRY)
