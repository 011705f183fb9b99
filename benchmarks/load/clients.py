"""Clients, well behaved and otherwise. Each runs one request and says what it saw.

ok: reads to the end and checks that the parts it was sent make up the result. cancel: leaves after
a few events. deadline: gives less time than the request needs. slow: reads nothing for a while.
killed: a process of its own that is killed while it reads.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TypeAlias

from benchmarks.load.measure import Seen
from benchmarks.load.traffic import Ask
from forkdecode import (
    AsyncClient,
    BeamUpdate,
    CandidateFinished,
    Committed,
    DeadlineError,
    Delta,
    Event,
    Finished,
    ForkdecodeError,
)

Run: TypeAlias = Callable[[AsyncClient, Ask, random.Random, Seen], Awaitable[None]]
WEIGHTS = {"ok": 70, "cancel": 10, "deadline": 8, "slow": 8, "killed": 4}


class Parts:
    """Puts a stream's deltas together, to compare them with the result at its end."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.texts: dict[int, str] = defaultdict(str)
        self.committed: list[int] = []
        self.text = ""

    def add(self, event: Event) -> None:
        if isinstance(event, Delta):
            self.tokens[event.candidate] += event.token_ids
            self.texts[event.candidate] += event.text
        elif isinstance(event, Committed):
            self.committed += event.token_ids
            self.text += event.text

    def fault(self, last: Finished) -> str | None:
        """Where the parts contradict the result, if they do."""
        for c in last.result.candidates:
            if list(c.token_ids[: len(self.committed)]) != self.committed or not c.text.startswith(self.text):
                return "what was committed is not in the result"
            if c.index in self.tokens and (
                tuple(self.tokens[c.index]) != c.token_ids or self.texts[c.index] != c.text
            ):
                return f"the deltas of candidate {c.index} don't make up its result"
        return None


async def ok(client: AsyncClient, ask: Ask, draw: random.Random, seen: Seen) -> None:
    begin, parts, last = time.perf_counter(), Parts(), None
    heard: dict[int, float] = {}
    async for event in client.stream(ask.prompt, ask.strategy, **ask.options):
        now = time.perf_counter()
        if seen.first is None and isinstance(event, (Delta, Committed, BeamUpdate, CandidateFinished)):
            seen.first = now - begin
        if (row := _row(event)) is not None:
            if row in heard:
                seen.gaps.append(now - heard[row])
            heard[row] = now
        parts.add(event)
        last = event
    if not isinstance(last, Finished):
        seen.problem = "the stream ended without a result"
        return
    seen.tokens = max(len(c.token_ids) for c in last.result.candidates)
    seen.problem = parts.fault(last)


def _row(event: Event) -> int | None:
    """Which candidate the event brings new tokens; all live rows of a beam are one."""
    if isinstance(event, Delta):
        return event.candidate if event.token_ids else None
    return 0 if isinstance(event, BeamUpdate) else None


async def cancel(client: AsyncClient, ask: Ask, draw: random.Random, seen: Seen) -> None:
    left = draw.randint(1, 8)
    async with aclosing(client.stream(ask.prompt, ask.strategy, **ask.options)) as events:
        async for _ in events:
            left -= 1
            if not left:
                break


async def deadline(client: AsyncClient, ask: Ask, draw: random.Random, seen: Seen) -> None:
    try:
        await client.decode(ask.prompt, ask.strategy, timeout=draw.uniform(0.01, 0.5), **ask.options)
    except DeadlineError:
        seen.status = "DeadlineError"


async def slow(client: AsyncClient, ask: Ask, draw: random.Random, seen: Seen) -> None:
    parts, last, waited = Parts(), None, False
    async for event in client.stream(ask.prompt, ask.strategy, **ask.options):
        parts.add(event)
        last = event
        if not waited:
            waited = True
            await asyncio.sleep(draw.uniform(1.0, 4.0))
    seen.problem = parts.fault(last) if isinstance(last, Finished) else "the stream ended without a result"


async def killed(client: AsyncClient, ask: Ask, draw: random.Random, seen: Seen) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.load.victim", client.address, ask.prompt,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    await process.stdout.readline()  # it has read its first event
    process.send_signal(signal.SIGKILL)
    await process.wait()


BEHAVIOURS: dict[str, Run] = {
    "ok": ok,
    "cancel": cancel,
    "deadline": deadline,
    "slow": slow,
    "killed": killed,
}


async def run(client: AsyncClient, ask: Ask, meant: str, draw: random.Random) -> Seen:
    """One request by a client that behaves as `meant` says. An error is a problem unless it was meant."""
    seen, begin = Seen(ask.kind, meant), time.perf_counter()
    try:
        await BEHAVIOURS[meant](client, ask, draw, seen)
        seen.status = seen.status or "ok"
    except ForkdecodeError as error:
        seen.status = type(error).__name__
        seen.problem = f"{seen.status}: {error}"
    seen.total = time.perf_counter() - begin
    return seen
