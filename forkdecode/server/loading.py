"""What becomes of calls to a server whose model is not there yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, NoReturn

from forkdecode.errors import UnavailableError
from forkdecode.server.auth import Caller
from forkdecode.server.guard import Context, Guard
from forkdecode.server.methods import SERVICE, Call
from forkdecode.server.record import CallRecord

LOADING_PATIENCE = 30.0
"""Seconds for which a call waits for the model: who can connect, and asks no health, counts on an answer."""
LOADING_RETRY = 5.0
"""Seconds after which one that waited in vain may come again."""


class Loading:
    """Calls wait for the model, `patience` seconds at most, and then are UNAVAILABLE; those of unknown
    callers are refused at once."""

    def __init__(self, guard: Guard, patience: float) -> None:
        self._guard = guard
        self._patience = patience
        self._served: asyncio.Future[Mapping[str, Call]] = asyncio.get_running_loop().create_future()

    @property
    def calls(self) -> Mapping[str, Call]:
        """Every method of the service by name."""
        return {name: self._waiting(name) for name in SERVICE.methods_by_name}

    def is_over(self, served: Mapping[str, Call]) -> None:
        """Those that wait go on as calls of these methods."""
        self._served.set_result(served)

    def _waiting(self, name: str) -> Call:
        async def refuse(_: bytes, __: Caller) -> NoReturn:
            raise UnavailableError("the model is being loaded", retry_after=LOADING_RETRY)

        async def call(messages: AsyncIterator[bytes], context: Context) -> Any:
            if self._guard.knows(context):
                waited = asyncio.wait([self._served], timeout=self._patience)
                await self._guard.hold(context, CallRecord(name), waited)
            if self._served.done():
                return await self._served.result()[name](messages, context)
            return await self._guard.serve(messages, context, CallRecord(name), refuse, takes_work=False)

        return call
