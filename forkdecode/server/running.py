"""What runs now: one bound for all callers together, and each caller's own limits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from forkdecode.errors import CapacityError, ForkdecodeError, QueueFullError, UnavailableError, own
from forkdecode.scheduler.request import DecodeRequest, most_blocks
from forkdecode.server.auth import Caller
from forkdecode.server.stream import Outbox
from forkdecode.strategies.factory import make_policy
from forkdecode.types import Continuations

BUSY_RETRY = 1.0
"""Seconds after which a busy server may have room."""
DRAIN_RETRY = 5.0
"""Seconds after which a server that shuts down may have a successor."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What a request counts for. row_tokens: candidates x (prompt + generated tokens at most)."""

    row_tokens: int
    blocks: int

    @classmethod
    def of(cls, request: DecodeRequest, block_size: int) -> Charge:
        """Of a request that decodes or scores."""
        ends = np.concatenate([request.eos_ids, request.stop_ids])
        rows = make_policy(request.strategy, request.options, ends).max_rows
        tokens = rows * request.options.max_tokens
        if isinstance(request.strategy, Continuations):
            tokens = sum(map(len, request.strategy.token_ids))
        return cls(rows * request.prompt_len + tokens, most_blocks(request, rows, block_size))


@dataclass(slots=True)
class _Held:
    requests: int = 0
    row_tokens: int = 0
    blocks: int = 0


class Running:
    """Counts calls in and out. Belongs to the loop."""

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self._calls = 0
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()
        """Of what is held: requests of tree sessions are counted in other threads."""
        self._outboxes: set[Outbox] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._ended: ForkdecodeError | None = None

    @contextmanager
    def call(self, caller: Caller) -> Iterator[None]:
        """A place for a call that takes work. Raises QueueFullError when all are taken, or all of this
        caller's; UnavailableError once the server shuts down."""
        if self._draining:
            raise going_down()
        if self._calls >= self._max_requests:
            raise QueueFullError(
                f"{self._calls} requests are running, which is the limit",
                field="max_requests",
                limit=f"{self._max_requests} at a time",
                retry_after=BUSY_RETRY,
            )
        self._enter(caller)
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            with self._lock:
                self._held[caller.name].requests -= 1
                self._forget_idle(caller)
            if not self._calls:
                self._idle.set()

    @contextmanager
    def charged(self, caller: Caller, charge: Charge) -> Iterator[None]:
        """Within a call: counts what it asks for. Raises CapacityError for what is above the caller's
        limits by itself, QueueFullError for what is with what else it has running."""
        self.take(caller, charge)
        try:
            yield
        finally:
            self.give_back(caller, charge)

    def take(self, caller: Caller, charge: Charge) -> None:
        """Counts what a request asks for until give_back(). From any thread. Raises as charged() does."""
        with self._lock:
            held = self._held.get(caller.name, _Held())
            for field, wanted, present, limit in (
                ("max_row_tokens", charge.row_tokens, held.row_tokens, caller.limits.max_row_tokens),
                ("max_blocks", charge.blocks, held.blocks, caller.limits.max_blocks),
            ):
                _check_limit(caller, field, wanted, present, limit)
            held.row_tokens += charge.row_tokens
            held.blocks += charge.blocks
            self._held[caller.name] = held

    def give_back(self, caller: Caller, charge: Charge) -> None:
        """The request has ended. From any thread."""
        with self._lock:
            held = self._held[caller.name]
            held.row_tokens -= charge.row_tokens
            held.blocks -= charge.blocks
            self._forget_idle(caller)

    @contextmanager
    def stream(self, outbox: Outbox) -> Iterator[None]:
        """While its reader is served, end_all() reaches it; raises what that said if it was before."""
        if self._ended is not None:
            raise own(self._ended, outbox.request.request_id)
        self._outboxes.add(outbox)
        try:
            yield
        finally:
            self._outboxes.discard(outbox)

    def drain(self) -> None:
        """Lets nobody in any more."""
        self._draining = True

    async def idle(self) -> None:
        """Waits until no call is left."""
        await self._idle.wait()

    def end_all(self, error: ForkdecodeError) -> int:
        """Ends every stream, and those that would yet begin; how many there were."""
        self._ended = error
        for outbox in self._outboxes:
            outbox.fail(own(error, outbox.request.request_id))
        return len(self._outboxes)

    def _enter(self, caller: Caller) -> None:
        limit = caller.limits.max_requests
        with self._lock:
            held = self._held.get(caller.name, _Held())
            if limit is not None and held.requests >= limit:
                raise QueueFullError(
                    f"{caller.name} has {held.requests} requests running, which is its limit",
                    field="max_requests",
                    limit=f"{limit} at a time",
                    retry_after=BUSY_RETRY,
                )
            held.requests += 1
            self._held[caller.name] = held

    def _forget_idle(self, caller: Caller) -> None:
        if self._held[caller.name] == _Held():
            del self._held[caller.name]

    @property
    def calls(self) -> int:
        """Calls being served."""
        return self._calls


def going_down() -> UnavailableError:
    """What a caller hears of a server that shuts down."""
    return UnavailableError("the server is shutting down", retry_after=DRAIN_RETRY)


def _check_limit(caller: Caller, field: str, wanted: int, present: int, limit: int | None) -> None:
    if limit is None or wanted + present <= limit:
        return
    unit = "row tokens" if field == "max_row_tokens" else "blocks"
    if wanted > limit:
        raise CapacityError(
            f"{field}: the request can take {wanted:,} {unit}, {caller.name} may have {limit:,}",
            field=field,
            limit=f"at most {limit:,} {unit}",
        )
    raise QueueFullError(
        f"{field}: the request can take {wanted:,} {unit} beside {present:,} of {caller.name}'s others, "
        f"which may have {limit:,}",
        field=field,
        limit=f"at most {limit:,} {unit} at a time",
        retry_after=BUSY_RETRY,
    )
