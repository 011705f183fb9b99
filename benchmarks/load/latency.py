"""Latency against the arrival rate: Poisson arrivals, the same ones in process and through gRPC."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Iterator
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
    """rates: requests a second on average, one after another, for `seconds` each."""

    kind: str
    width: int
    tokens: int
    rates: tuple[float, ...]
    seconds: float
    seed: int


def latency(model: str, threads: int, load: Load, log: str | None) -> list[dict[str, Any]]:
    """A result for each rate and side."""
    settings = asdict(load)
    rates = settings.pop("rates")
    results = []
    with both_sides(__name__, model, threads, log) as sides:
        for side in sides.values():  # warms up
            side.ask({**settings, "rate": 4.0, "seconds": 1.0})
        for rate in rates:
            for name, side in sides.items():
                asked = {**settings, "rate": rate}
                found = side.ask(asked)
                results.append({"side": name, **asked, "threads": threads, "dtype": side.dtype, **found})
    return results


async def _work(side: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """What the clients of one run see."""
    asks = requests(asked["seed"], asked["kind"], asked["width"], asked["tokens"])
    begin = time.perf_counter()
    summary = await open_loop(side, asks, rate=asked["rate"], seconds=asked["seconds"], seed=asked["seed"])
    until_last = time.perf_counter() - begin
    seen = summary.seen
    return {
        "requests": len(seen),
        "until_last": until_last,
        "tokens_per_second": asked["width"] * sum(s.tokens for s in seen) / until_last,
        "first_token": percentiles(s.first for s in seen),
        "between_tokens": percentiles(gap for s in seen for gap in s.gaps),
        "faults": summary.problems()[:20],
    }


if __name__ == "__main__":
    asyncio.run(answer(sys.argv[1:], _work))
