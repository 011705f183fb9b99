"""A server under load, from outside.

    python -m benchmarks.serving latency [--rates R ...] [--runs 2]     percentiles by arrival rate
    python -m benchmarks.serving overhead [--runs 5]                    throughput over that in process
    python -m benchmarks.serving soak [--seconds 600] [--streams 64]    faults of every kind; must stay whole
    python -m benchmarks.serving kill [--times 20]                      kill -9 of the engine under load

Each starts `forkdecode serve --model M` on loopback; latency and overhead ask the same of an AsyncLLM in
turn. --record FILE appends JSON lines. The exit code is 1 when something happened that nobody asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.load.latency import Load, latency
from benchmarks.load.loops import closed_loop
from benchmarks.load.measure import Summary, growth
from benchmarks.load.overhead import overhead
from benchmarks.load.server_process import ServerProcess, server
from benchmarks.load.traffic import traffic
from benchmarks.record import record
from forkdecode import AsyncClient

FLAT = 1.05
"""Memory may grow by so much between the second and the last quarter of a run."""


async def soak(running: ServerProcess, args: argparse.Namespace) -> dict[str, Any]:
    """Closed loop with every kind of client. Then nothing may run, and no block be held."""
    memory: list[dict[str, int]] = []
    length = args.seconds or 600.0

    async def watch() -> None:
        while True:
            memory.append(running.memory())
            await asyncio.sleep(length / 120)

    async with AsyncClient(running.address) as client:
        watching, begin = asyncio.create_task(watch()), time.perf_counter()
        asks = traffic(args.seed, words=(1, args.words))
        summary = await closed_loop(client, asks, streams=args.streams, seconds=length, seed=args.seed)
        seconds = time.perf_counter() - begin
        watching.cancel()
        idle = await _idle(client)
    found = summary.record(seconds)
    grown = {name: growth([m[name] for m in memory]) for name in ("front", "engine")}
    found |= {"streams": args.streams, "memory_growth": grown, "idle": idle}
    found["memory"] = {name: [memory[0][name], memory[-1][name]] for name in ("front", "engine")}
    faults = list(summary.problems())
    faults += [f"{name} memory grew {g:.3f} times" for name, g in grown.items() if g > FLAT and length >= 60]
    faults += [] if idle else ["blocks or requests are left"]
    return found | {"faults": faults[:20]}


async def kill(running: ServerProcess, args: argparse.Namespace) -> dict[str, Any]:
    """The engine dies again and again: each request ends whole or with UnavailableError, and soon
    after the server serves again."""
    summary, back = Summary(), list[float]()
    async with AsyncClient(running.address, retries=0) as client:
        for round_ in range(args.times):
            asks = traffic(args.seed + round_, words=(1, args.words))
            load_ = asyncio.create_task(
                closed_loop(client, asks, streams=args.streams, seconds=2.0, seed=round_, weights={"ok": 1})
            )
            await asyncio.sleep(1.0)
            begin = time.perf_counter()
            await asyncio.to_thread(running.kill_engine)
            summary.seen += (await asyncio.wait_for(load_, 120)).seen
            await _serves(client)
            back.append(time.perf_counter() - begin)
        idle = await _idle(client)
    faults = [p for p in summary.problems() if "UnavailableError" not in p and "EngineClosedError" not in p]
    faults += [] if idle else ["blocks or requests are left"]
    found = summary.record(sum(back))
    return found | {"kills": args.times, "seconds_until_it_serves": sorted(back), "faults": faults[:20]}


async def _serves(client: AsyncClient) -> None:
    """Waits until a request succeeds again."""
    from forkdecode import UnavailableError

    end = time.perf_counter() + 60
    while True:
        try:
            await client.decode("The sea is", max_tokens=2)
            return
        except UnavailableError as error:
            if time.perf_counter() > end:
                raise
            await asyncio.sleep(min(1.0, error.retry_after or 0.2))


async def _idle(client: AsyncClient) -> bool:
    """Whether all blocks have come back, a moment after the last request ended."""
    for _ in range(100):
        stats = await client.stats()
        if not (stats.running_groups or stats.waiting_groups or stats.used_blocks):
            return stats.free_blocks + stats.cached_blocks == stats.total_blocks
        await asyncio.sleep(0.1)
    return False


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("latency", "overhead", "soak", "kill"))
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rates", nargs="*", type=float, default=[0.5, 1, 2, 3], help="requests a second")
    parser.add_argument("--kind", choices=("sample", "beam"), default="sample", help="of latency's requests")
    parser.add_argument("--width", type=int, default=4, help="rows of each of latency's requests")
    parser.add_argument("--tokens", type=int, default=64, help="of each row (latency, overhead)")
    parser.add_argument("--runs", type=int, help="pairs of runs: 5 (overhead); 2 of each rate (latency)")
    parser.add_argument("--seconds", type=float, help="a rate: 25; a soak: 600")
    parser.add_argument("--streams", type=int, default=64, help="at once (soak, kill)")
    parser.add_argument("--words", type=int, default=150, help="of a prompt, at most (soak, kill)")
    parser.add_argument("--times", type=int, default=20, help="that the engine is killed")
    parser.add_argument("--threads", type=int, help="of the engine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", help="where the server's log goes")
    parser.add_argument("--record", type=Path)
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """What args.what finds. "faults" is what nobody asked for."""
    threads = args.threads or len(os.sched_getaffinity(0))
    if args.what == "overhead":
        return overhead(args.model, threads, args.tokens, args.runs or 5, args.log)
    if args.what == "latency":
        seconds, runs = args.seconds or 25.0, args.runs or 2
        asked = Load(args.kind, args.width, args.tokens, tuple(args.rates), seconds, runs, args.seed)
        return latency(args.model, threads, asked, args.log)
    flags = ["--threads", str(threads)]
    if args.what == "soak":
        # A pool that is soon in use whole: pages of a large one that are touched for the first time
        # late would look like a leak.
        flags += ["--kv-memory", "1GiB"]
    with server(args.model, flags, args.log) as running:
        return [asyncio.run({"soak": soak, "kill": kill}[args.what](running, args))]


def main() -> None:
    args = parse()
    faults = []
    for found in run(args):
        settings = {"model": Path(args.model).name, "seed": args.seed}
        record(f"serving_{args.what}", settings | found, args.record)
        faults += found.get("faults", [])
    if faults:
        raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    main()
