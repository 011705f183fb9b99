"""What calls hear of a server whose model is not there yet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import NoReturn

from forkdecode.errors import UnavailableError
from forkdecode.server.auth import Caller
from forkdecode.server.guard import Context, Guard
from forkdecode.server.methods import SERVICE, Call
from forkdecode.server.record import CallRecord

LOADING_RETRY = 5.0
"""Seconds after which a server that loads may be ready: with five retries, a client of ours waits for half a
minute."""


def loading_calls(guard: Guard) -> Mapping[str, Call]:
    """Every method of the service by name, each UNAVAILABLE."""
    return {name: _refusal(name, guard) for name in SERVICE.methods_by_name}


def _refusal(name: str, guard: Guard) -> Call:
    async def refuse(_: bytes, __: Caller) -> NoReturn:
        raise UnavailableError("the model is being loaded", retry_after=LOADING_RETRY)

    async def call(messages: AsyncIterator[bytes], context: Context) -> None:
        await guard.serve(messages, context, CallRecord(name), refuse, takes_work=False)

    return call
