"""Latency against the arrival rate: Poisson arrivals, the same ones in process and through gRPC."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.load.loops import open_loop
from benchmarks.load.measure import percentiles
from benchmarks.load.sides import answer, both_sides
from benchmarks.load.traffic import Ask
from benchmarks.prompts import PASSAGES
from forkdecode import Beam, Sample, Strategy

WORDS = (10, 60)
"""Of a prompt."""


def requests(seed: int, kind: str, width: int, tokens: int) -> Iterator[Ask]:
    """Endless; equal for equal seeds. Every request decodes `tokens` tokens a row."""
    draw = random.Random(seed)
    while True:
        words = draw.choice(PASSAGES).split()
        start = draw.randrange(len(words) // 2)
        prompt = " ".join(words[start : start + draw.randint(*WORDS)])
        strategy: Strategy = Beam(width)
        if kind == "sample":
            strategy = Sample(width, temperature=0.8, top_p=0.95, seed=draw.randrange(2**32))
        yield Ask(prompt, strategy, {"max_tokens": tokens, "ignore_eos": True})


@dataclass(frozen=True)
class Load:
    """rates: requests a second on average, one after another, for `seconds` each. runs: of each, with other
    requests and arrivals, from seed on."""

    kind: str
    width: int
    tokens: int
    rates: tuple[float, ...]
    seconds: float
    runs: int
    seed: int


def latency(model: str, threads: int, load: Load, log: str | None) -> list[dict[str, Any]]:
    """A result for each rate and side; who begins alternates from run to run."""
    settings = asdict(load)
    rates = settings.pop("rates")
    results = []
    with both_sides(__name__, model, threads, log) as sides:
        for side in sides.values():  # warms up
            side.ask({**settings, "rate": 4.0, "seconds": 1.0})
        for rate in rates:
            asked = {**settings, "rate": rate}
            found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
            for run in range(load.runs):
                for name in list(sides)[:: 1 if run % 2 == 0 else -1]:
                    found[name].append(sides[name].ask({**asked, "seed": load.seed + run}))
            for name, side in sides.items():
                told = {"side": name, **asked, "threads": threads, "dtype": side.dtype}
                results.append(told | together(found[name], load.width))
    return results


def together(runs: Sequence[dict[str, Any]], width: int) -> dict[str, Any]:
    """Percentiles over the requests of all runs, and the smallest and the largest median of a run."""
    until_last = sum(run["until_last"] for run in runs)
    found = {
        "requests": sum(run["requests"] for run in runs),
        "until_last": until_last,
        "tokens_per_second": width * sum(run["tokens"] for run in runs) / until_last,
        "faults": [fault for run in runs for fault in run["faults"]][:20],
    }
    for name in ("first_token", "between_tokens"):
        medians = [own["p50"] for own in (percentiles(run[name]) for run in runs) if own]
        spread = {"p50_min": min(medians), "p50_max": max(medians)} if medians else {}
        found[name] = percentiles(value for run in runs for value in run[name]) | spread
    return found


async def _work(side: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """What the clients of one run see; all waits, in seconds."""
    asks = requests(asked["seed"], asked["kind"], asked["width"], asked["tokens"])
    begin = time.perf_counter()
    summary = await open_loop(side, asks, rate=asked["rate"], seconds=asked["seconds"], seed=asked["seed"])
    until_last = time.perf_counter() - begin
    seen = summary.seen
    return {
        "requests": len(seen),
        "until_last": until_last,
        "tokens": sum(s.tokens for s in seen),
        "first_token": [s.first for s in seen if s.first is not None],
        "between_tokens": [gap for s in seen for gap in s.gaps],
        "faults": summary.problems()[:20],
    }


if __name__ == "__main__":
    asyncio.run(answer(sys.argv[1:], _work))
