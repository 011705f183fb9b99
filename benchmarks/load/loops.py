"""When requests come: so many at once (closed loop), or at random times whatever is running (open loop)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping

from benchmarks.load.clients import WEIGHTS, run
from benchmarks.load.measure import Seen, Summary
from benchmarks.load.traffic import Ask
from forkdecode import AsyncClient


async def closed_loop(
    client: AsyncClient,
    asks: Iterator[Ask],
    *,
    streams: int,
    seconds: float,
    seed: int,
    weights: Mapping[str, int] = WEIGHTS,
) -> Summary:
    """`streams` clients, each of which sends its next request when its last has ended."""
    summary, end = Summary(), time.perf_counter() + seconds

    async def one(number: int) -> None:
        draw = random.Random(f"{seed}/{number}")
        while time.perf_counter() < end:
            meant = draw.choices(list(weights), list(weights.values()))[0]
            summary.seen.append(await run(client, next(asks), meant, draw))

    await asyncio.gather(*(one(i) for i in range(streams)))
    return summary


async def open_loop(
    client: AsyncClient,
    asks: Iterator[Ask],
    *,
    rate: float,
    seconds: float,
    seed: int,
    weights: Mapping[str, int] | None = None,
) -> Summary:
    """Poisson arrivals, `rate` a second on average: a server that is too slow sees its queue grow."""
    kinds = weights or {"ok": 1}
    draw, tasks = random.Random(seed), list[asyncio.Task[Seen]]()
    begin = due = time.perf_counter()
    while True:
        due += draw.expovariate(rate)
        if due - begin > seconds:
            break
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        meant = draw.choices(list(kinds), list(kinds.values()))[0]
        own = random.Random(draw.random())
        tasks.append(asyncio.create_task(run(client, next(asks), meant, own)))
    return Summary(list(await asyncio.gather(*tasks)))
