"""The same engine in process and behind gRPC, each with its readers in a process of its own.

In process is a process with an AsyncLLM that reads streams; the service is `forkdecode serve` and a process
with an AsyncClient. Both engines have a process that does nothing else; one side works while the other
sleeps. A side's work is a module that is run with the arguments WHERE and THREADS, and that answers
questions, one JSON object a line, until its stdin ends (`answer`).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.load.server_process import server

LOOPBACK = "127.0.0.1:"
Work = Callable[[Any, dict[str, Any]], Awaitable[dict[str, Any]]]
"""What a side does for a question: an AsyncLLM or AsyncClient and the question, to the answer."""


class Side:
    """One of the two, as the process that asks it sees it."""

    def __init__(self, module: str, where: str, threads: int) -> None:
        command = [sys.executable, "-m", module, where, str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.dtype = str(self._line()["dtype"])

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a side died")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def both_sides(module: str, model: str, threads: int, log: str | None) -> Iterator[dict[str, Side]]:
    """ "service" and "in process", without a prefix cache, so that no run helps the next."""
    with server(model, ["--threads", str(threads), "--no-prefix-cache"], log) as running:
        found: dict[str, Side] = {}
        try:
            found["service"] = Side(module, running.address, threads)
            found["in process"] = Side(module, model, threads)
            yield found
        finally:
            for side in found.values():
                side.close()


async def answer(argv: list[str], work: Work) -> None:
    """The main loop of a side."""
    where, threads = argv[0], int(argv[1])
    if where.startswith(LOOPBACK):
        from forkdecode import AsyncClient

        async with AsyncClient(where) as client:
            await _answer(client, (await client.model()).dtype, work)
    else:
        from forkdecode import AsyncLLM

        async with AsyncLLM(where, threads=threads, prefix_cache=False) as llm:
            await _answer(llm, llm.info.dtype, work)


async def _answer(side: Any, dtype: str, work: Work) -> None:
    print(json.dumps({"dtype": dtype}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await work(side, json.loads(line))), flush=True)
