"""What the service costs: the same requests through gRPC and in-process, in turn.

Both sides have an engine in a process that does nothing else: in-process is a process with an
AsyncLLM that reads streams; the service is `forkdecode serve` and a process with an AsyncClient. One
runs while the other sleeps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from benchmarks.load.server_process import server
from benchmarks.prompts import PASSAGES
from forkdecode import Event, Finished, Sample

WORKLOADS = {"16 requests of 4 rows": (16, 4), "64 streams": (64, 1)}
GOALS = {"16 requests of 4 rows": 0.95, "64 streams": 0.85}


async def _one(side: Any, number: int, rows: int, tokens: int) -> int:
    words = PASSAGES[number % len(PASSAGES)].split()
    prompt = f"{number}: " + " ".join(words[: 40 + number])
    strategy = Sample(n=rows, temperature=0.8, top_p=0.95, seed=number)
    events: AsyncIterator[Event] = side.stream(prompt, strategy, max_tokens=tokens, ignore_eos=True)
    count = 0
    async for event in events:
        if isinstance(event, Finished):
            count = event.result.usage.generated_tokens
    return count


async def _serve(side: Any, tokens: int) -> None:
    """Runs the workload named on each line of stdin; says how long it took."""
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        requests, rows = WORKLOADS[line.strip()]
        begin = time.perf_counter()
        found = await asyncio.gather(*(_one(side, i, rows, tokens) for i in range(requests)))
        seconds = time.perf_counter() - begin
        assert sum(found) == requests * rows * tokens
        print(json.dumps({"seconds": seconds, "tokens": sum(found)}), flush=True)


async def _side(argv: list[str]) -> None:
    where, threads, tokens = argv[0], int(argv[1]), int(argv[2])
    if where.startswith("127.0.0.1:"):
        from forkdecode import AsyncClient

        async with AsyncClient(where) as client:
            await _serve(client, tokens)
    else:
        from forkdecode import AsyncLLM

        async with AsyncLLM(where, threads=threads, prefix_cache=False) as llm:
            await _serve(llm, tokens)


class _Side:
    def __init__(self, where: str, threads: int, tokens: int) -> None:
        command = [sys.executable, "-m", "benchmarks.load.overhead", where, str(threads), str(tokens)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line()

    def run(self, workload: str) -> float:
        assert self.process.stdin is not None
        print(workload, file=self.process.stdin, flush=True)
        return float(json.loads(self._line())["seconds"])

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a side died")
        return line

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def overhead(args: argparse.Namespace) -> dict[str, Any]:
    """Ratio of throughput, service to in-process, of each workload: median of the pairs."""
    import os

    threads = args.threads or len(os.sched_getaffinity(0))
    found: dict[str, Any] = {}
    with server(args.model, ["--threads", str(threads), "--no-prefix-cache"], args.log) as running:
        service = _Side(running.address, threads, args.tokens)
        inside = _Side(args.model, threads, args.tokens)
        for workload in WORKLOADS:
            service.run(workload)
            inside.run(workload)
            pairs = [(service.run(workload), inside.run(workload)) for _ in range(args.runs)]
            ratios = sorted(b / a for a, b in pairs)
            found[workload] = {
                "ratio": statistics.median(ratios),
                "ratio_min": ratios[0],
                "ratio_max": ratios[-1],
                "goal": GOALS[workload],
            }
        service.close()
        inside.close()
    return found | {"runs": args.runs, "threads": threads, "tokens": args.tokens}


if __name__ == "__main__":
    asyncio.run(_side(sys.argv[1:]))
