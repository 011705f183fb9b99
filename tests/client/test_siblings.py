"""Lists at servers with less room, in a loop whose clock goes on by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from forkdecode.client.attempts import Attempts
from forkdecode.client.siblings import Siblings
from forkdecode.errors import ForkdecodeError, QueueFullError, UnavailableError

HINT = 1.0


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time goes on at once when nothing else happens."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._now = max(self._now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class Server:
    """answers: seconds until a refusal is there. works: seconds that a request takes."""

    def __init__(self, room: int, *, answers: float = 0.01, works: float = 10.0) -> None:
        self.room, self.answers, self.works = room, answers, works
        self.calls = self.done = self.running = 0

    async def call(self) -> None:
        self.calls += 1
        await asyncio.sleep(self.answers)
        if self.running >= self.room:
            raise QueueFullError("full", retry_after=HINT)
        self.running += 1
        await asyncio.sleep(self.works)
        self.running -= 1
        self.done += 1


async def request(server: Server, siblings: Siblings, retries: int = 5, timeout: float | None = None) -> bool:
    """As the transport sends one; whether it was served."""
    attempts, loop = Attempts(retries, timeout), asyncio.get_running_loop()
    while True:
        began = loop.time()
        try:
            with siblings.running():
                await server.call()
                siblings.room()
                return True
        except ForkdecodeError as error:
            failure = error
        if not await siblings.again(failure, attempts, loop.time() - began):
            return False


def run(work: Coroutine[Any, Any, None]) -> None:
    random.seed(1)
    with asyncio.Runner(loop_factory=Clock) as runner:
        runner.run(work)


@pytest.mark.parametrize("answers", [0.01, 4.0])
@pytest.mark.parametrize(("count", "room"), [(40, 3), (200, 3), (200, 40)])
def test_calls_grow_with_the_list_and_not_with_its_square(count: int, room: int, answers: float) -> None:
    async def work() -> None:
        server, siblings = Server(room, answers=answers), Siblings()
        served = await asyncio.gather(*(request(server, siblings) for _ in range(count)))
        assert all(served)
        least = count / room * (server.works + server.answers)
        assert asyncio.get_running_loop().time() < 1.4 * least + 3 * (HINT + answers)
        probes = least / max(HINT, answers)
        assert server.calls <= 2 * count + 3 * probes

    run(work())


@pytest.mark.parametrize("answers", [0.01, 4.0])
@pytest.mark.parametrize("count", [1, 40, 200])
def test_nobody_waits_for_long_at_a_server_that_is_full_with_others(count: int, answers: float) -> None:
    async def work() -> None:
        server, siblings = Server(0, answers=answers), Siblings()
        served = await asyncio.gather(*(request(server, siblings) for _ in range(count)))
        assert not any(served)
        assert asyncio.get_running_loop().time() < 5 * 8 * max(HINT, answers)
        assert count + 4 <= server.calls <= count + 20

    run(work())


def test_room_that_others_leave_is_soon_taken() -> None:
    async def work() -> None:
        server, siblings = Server(1, works=1000.0), Siblings()
        tasks = [asyncio.ensure_future(request(server, siblings)) for _ in range(200)]
        await asyncio.sleep(100)
        assert server.running == 1
        server.room = 150
        await asyncio.sleep(15)
        assert server.running == 150
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(work())


def test_who_no_longer_waits_keeps_nobody_up() -> None:
    async def work() -> None:
        server, siblings = Server(1, works=5.0), Siblings()
        tasks = [asyncio.ensure_future(request(server, siblings)) for _ in range(9)]
        await asyncio.sleep(1)
        for task in tasks[1::2]:
            task.cancel()
        served = await asyncio.gather(*tasks, return_exceptions=True)
        assert [found is True for found in served] == [True, False] * 4 + [True]
        assert asyncio.get_running_loop().time() < 5 * (server.works + 2 * HINT)

    run(work())


def test_other_failures_wait_each_by_itself() -> None:
    async def work() -> None:
        siblings, loop = Siblings(), asyncio.get_running_loop()
        with siblings.running():
            attempts = Attempts(1, None)
            assert await siblings.again(UnavailableError("starting", retry_after=7.0), attempts, 0.1)
            assert 7.0 <= loop.time() <= 8.5
            assert not await siblings.again(UnavailableError("starting", retry_after=7.0), attempts, 0.1)
            assert not await siblings.again(QueueFullError("never"), Attempts(5, None), 0.1)

    run(work())
