"""What the service costs: the same requests through gRPC and in process, in turn."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from benchmarks.load.sides import answer, both_sides
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


async def _work(side: Any, question: dict[str, Any]) -> dict[str, Any]:
    """How long the workload takes."""
    requests, rows = WORKLOADS[question["workload"]]
    tokens = question["tokens"]
    begin = time.perf_counter()
    found = await asyncio.gather(*(_one(side, i, rows, tokens) for i in range(requests)))
    seconds = time.perf_counter() - begin
    assert sum(found) == requests * rows * tokens
    return {"seconds": seconds}


def overhead(model: str, threads: int, tokens: int, runs: int, log: str | None) -> list[dict[str, Any]]:
    """Ratio of throughput, service to in process, of each workload: median of the pairs."""
    results = []
    with both_sides(__name__, model, threads, log) as sides:
        for workload in WORKLOADS:
            question = {"workload": workload, "tokens": tokens}

            def pair(question: dict[str, Any] = question) -> float:
                service, inside = (side.ask(question)["seconds"] for side in sides.values())
                return float(inside / service)

            pair()
            ratios = sorted(pair() for _ in range(runs))
            spread = {"ratio": statistics.median(ratios), "ratio_min": ratios[0], "ratio_max": ratios[-1]}
            results.append(
                {"workload": workload, **spread, "goal": GOALS[workload], "runs": runs}
                | {"threads": threads, "tokens": tokens, "dtype": sides["service"].dtype}
            )
    return results


if __name__ == "__main__":
    asyncio.run(answer(sys.argv[1:], _work))
