"""A server under load, from outside.

    python -m benchmarks.serving soak [--seconds 600] [--streams 64]    faults of every kind; must stay whole
    python -m benchmarks.serving load [--rate R | --streams N]          percentiles of latency
    python -m benchmarks.serving kill [--times 20]                      kill -9 of the engine under load
    python -m benchmarks.serving overhead                               against the same engine in-process

Each starts `forkdecode serve --model M` on loopback. --record FILE appends a JSON line, --plot FILE draws the
latencies. The exit code is 1 when something happened that nobody asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

from benchmarks.load.loops import closed_loop, open_loop
from benchmarks.load.measure import Summary, growth
from benchmarks.load.server_process import ServerProcess, server
from benchmarks.load.traffic import traffic
from benchmarks.record import record
from forkdecode import AsyncClient

FLAT = 1.05
"""Memory may grow by so much between the second and the last quarter of a run."""


async def soak(running: ServerProcess, args: argparse.Namespace) -> dict[str, Any]:
    """Closed loop with every kind of client. Then nothing may run, and no block be held."""
    memory: list[dict[str, int]] = []

    async def watch() -> None:
        while True:
            memory.append(running.memory())
            await asyncio.sleep(args.seconds / 120)

    async with AsyncClient(running.address) as client:
        watching, begin = asyncio.create_task(watch()), time.perf_counter()
        asks = traffic(args.seed, words=(1, args.words))
        summary = await closed_loop(client, asks, streams=args.streams, seconds=args.seconds, seed=args.seed)
        seconds = time.perf_counter() - begin
        watching.cancel()
        idle = await _idle(client)
    found = summary.record(seconds)
    grown = {name: growth([m[name] for m in memory]) for name in ("front", "engine")}
    found |= {"streams": args.streams, "memory_growth": grown, "idle": idle}
    found["memory"] = {name: [memory[0][name], memory[-1][name]] for name in ("front", "engine")}
    faults = list(summary.problems())
    faults += [
        f"{name} memory grew {g:.3f} times" for name, g in grown.items() if g > FLAT and args.seconds >= 60
    ]
    faults += [] if idle else ["blocks or requests are left"]
    return found | {"faults": faults[:20]}


async def load(running: ServerProcess, args: argparse.Namespace) -> dict[str, Any]:
    """Well-behaved clients only."""
    async with AsyncClient(running.address) as client:
        begin, asks = time.perf_counter(), traffic(args.seed, words=(1, args.words))
        common = {"seconds": args.seconds, "seed": args.seed, "weights": {"ok": 1}}
        if args.rate:
            summary = await open_loop(client, asks, rate=args.rate, **common)
        else:
            summary = await closed_loop(client, asks, streams=args.streams, **common)
        found = summary.record(time.perf_counter() - begin)
    if args.plot:
        from benchmarks.load.plot import plot_latencies

        plot_latencies(summary, args.plot)
    return found | {"rate": args.rate, "streams": args.streams, "faults": summary.problems()[:20]}


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
    parser.add_argument("what", choices=("soak", "load", "kill", "overhead"))
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, help="requests a second; open loop instead of --streams")
    parser.add_argument("--words", type=int, default=150, help="of a prompt, at most")
    parser.add_argument("--times", type=int, default=20, help="that the engine is killed")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", help="where the server's log goes")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--plot", type=Path)
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """What args.what finds. "faults" is what nobody asked for."""
    if args.what == "overhead":
        from benchmarks.load.overhead import overhead

        return overhead(args)
    flags = ["--threads", str(args.threads)] if args.threads else []
    if args.what == "soak":
        # A pool that is soon in use whole: pages of a large one that are touched for the first time
        # late would look like a leak.
        flags += ["--kv-memory", "1GiB"]
    with server(args.model, flags, args.log) as running:
        return asyncio.run({"soak": soak, "load": load, "kill": kill}[args.what](running, args))


def main() -> None:
    args = parse()
    found = run(args)
    record(f"serving-{args.what}", {"model": Path(args.model).name, **found}, args.record)
    raise SystemExit(1 if found.get("faults") else 0)


if __name__ == "__main__":
    main()
