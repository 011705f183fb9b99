"""Closing a client ends whatever it waits for, and whoever collects garbage may close what he finds."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable
from typing import Any

import pytest

from forkdecode import AsyncClient, Client, EngineClosedError, UnavailableError
from forkdecode.client.attempts import Attempts
from forkdecode.engine.log import json_logger
from forkdecode.server.app import Server
from forkdecode.server.guard import Guard
from forkdecode.server.settings import ServerSettings
from tests.client.scripted import Script, fails, scripted, silent
from tests.server.servers import LOOPBACK, Log

LONG = 60.0


async def closed_under(client: AsyncClient, work: Awaitable[Any], waits: asyncio.Event) -> None:
    """Closes the client while `work` waits."""
    task = asyncio.ensure_future(work)
    await asyncio.wait_for(waits.wait(), LONG)
    assert not task.done()
    await client.close()
    await asyncio.wait([task], timeout=LONG)
    assert task.done(), "it still waits"
    assert not task.cancelled(), "asyncio.CancelledError, though nobody cancelled it"
    assert isinstance(task.exception(), EngineClosedError)


@pytest.mark.parametrize("verb", ["stats", "tree"])
def test_a_call_that_waits_to_be_tried_again(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(address: str) -> None:
        waits = asyncio.Event()

        def delay(self: Attempts, *_: object) -> float:
            waits.set()
            return 1e6

        monkeypatch.setattr(Attempts, "delay", delay)
        client = AsyncClient(address)
        await closed_under(client, client.stats() if verb == "stats" else client.tree("a"), waits)

    with scripted(fails(UnavailableError("loading"))) as script:
        # A tree of one that listens no more.
        asyncio.run(check(script.address if verb == "stats" else "127.0.0.1:1"))


def test_a_tree_that_nobody_waits_for_any_more_is_closed_at_the_server() -> None:
    async def check(script: Script) -> None:
        async with AsyncClient(script.address) as client:
            task = asyncio.ensure_future(client.tree("a"))
            assert await asyncio.to_thread(script.arrived.wait, LONG)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            script.opens.set()
            assert await asyncio.to_thread(script.closed.wait, LONG)

    with scripted(silent) as script:
        script.opens.clear()
        asyncio.run(check(script))


def test_a_tree_that_is_opened_while_the_server_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        waits = asyncio.Event()

        def knows(*_: object) -> bool:
            waits.set()
            return True

        monkeypatch.setattr(Guard, "knows", knows)
        server = Server(ServerSettings(listen=LOOPBACK), json_logger(Log()), loading_patience=1e6)
        address = server.bind()
        await server.open()
        client = AsyncClient(str(address))
        await closed_under(client, client.tree("hello"), waits)
        await server.stop()

    asyncio.run(check())


def test_a_tree_whose_server_does_not_answer_the_connection() -> None:
    async def check() -> None:
        waits = asyncio.Event()

        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            waits.set()
            while await reader.read(2**16):
                pass
            writer.close()

        listener = await asyncio.start_server(mute, "127.0.0.1", 0)
        client = AsyncClient(f"127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        await closed_under(client, client.tree("hello"), waits)
        listener.close()

    asyncio.run(check())


def test_who_cancels_a_call_while_it_is_closed_has_cancelled_it() -> None:
    async def check() -> None:
        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        listener = await asyncio.start_server(mute, "127.0.0.1", 0)
        client = AsyncClient(f"127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        task = asyncio.ensure_future(client.stats())
        await asyncio.sleep(0)
        task.cancel()
        await client.close()
        await asyncio.wait([task], timeout=LONG)
        assert task.cancelled()
        listener.close()

    asyncio.run(check())


def test_garbage_that_is_collected_while_a_request_is_sent() -> None:
    """A stream's end posts, from within post(): a collection may come with any allocation there."""
    client = Client("127.0.0.1:9", retries=0)
    loop = client._link.loop
    plain = loop._loop.call_soon_threadsafe
    collects = [False]

    def collecting(*args: Any, **more: Any) -> Any:
        if collects[0]:
            collects[0] = False
            gc.collect()
        return plain(*args, **more)

    loop._loop.call_soon_threadsafe = collecting  # type: ignore[method-assign]
    gc.disable()
    try:
        cycle: list[Any] = [client.stream("a")]
        cycle.append(cycle)
        del cycle
        collects[0] = True
        sender = threading.Thread(target=lambda: client.submit("b"), daemon=True)
        sender.start()
        sender.join(LONG)
        stuck = sender.is_alive()
        if stuck:
            loop._posting.release()  # or nothing of this process ends
    finally:
        gc.enable()
    client.close()
    assert not stuck, "the thread waits for a lock that it holds itself"
