"""How many requests a second one accelerator carries, and what sharing buys: a simulation in which all
but the model is real.

    python -m benchmarks.simulate [--model 8b] [--accelerator h200] [--devices 1] [--trace sharegpt]
        [--kind beam] [--width 8] [--system forest paged ...] [--rate R ...] [--count N] [--record FILE]

The scheduler, the block pool, the strategies and the forest plan are the engine's own. The model is a fake
(simulate_model.py) whose beams share as much as a real model's (--sharpness, see docs/performance.md);
a step takes what a roofline of the accelerator says (simulate_cost.py). Requests of the trace's lengths
arrive at each rate, at random (Poisson); rate 0 is all at once. Systems:

    forest       blocks are shared, and attention reads a shared block once for all its rows
    paged        blocks are shared, attention reads every row's whole context
    unshared     blocks, but each row has its own; a beam's row that leaves its parent's place copies it all
    exact        unshared, and a row's memory is reserved at arrival, by what it will turn out to need
    contiguous   the same with --max-len tokens for each, and all rows are copied when beams move

The host's time is not in the simulated clock; it is measured and reported beside (host_ms_a_step).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.memory_trace import TRACES, Trace
from benchmarks.record import record
from benchmarks.simulate_cost import ACCELERATORS, MODELS, CostModel
from benchmarks.simulate_load import SYSTEMS, Load
from benchmarks.simulate_run import Simulation

SHARPNESS = 8.0
SHORT = Trace("short", 128.0, 10.0)
"""Answers of a few words: the most requests for the least work, as for 10^4 of them in a test."""
ALL_TRACES = TRACES | {SHORT.name: SHORT}


def settings(args: argparse.Namespace) -> dict[str, Any]:
    names = (
        "model",
        "accelerator",
        "devices",
        "trace",
        "kind",
        "width",
        "count",
        "seed",
        "sharpness",
        "memory_share",
    )
    return {n: getattr(args, n) for n in (*names, "max_len", "first_target", "token_target")}


def simulate(args: argparse.Namespace, system: str, rate: float) -> dict[str, Any]:
    cost = CostModel(ACCELERATORS[args.accelerator], MODELS[args.model], args.devices, args.memory_share)
    load = Load(ALL_TRACES[args.trace], args.kind, args.width, args.count, rate, args.seed)
    simulation = Simulation(
        SYSTEMS[system], load, cost, sharpness=args.sharpness, max_len=args.max_len, stride=args.stride
    ).run()
    found = simulation.report(args.first_target, args.token_target)
    return {"system": system, "rate": rate, "pool_tokens": cost.pool_tokens, **found}


def line(found: dict[str, Any]) -> str:
    return (
        f"{found['system']:10s} rate {found['rate']:7.2f}  served {found['requests_per_second']:7.2f}/s  "
        f"goodput {found['goodput']:7.2f}/s  step {found['step_ms']:6.1f} ms of "
        f"{found['rows_a_step']:7.0f} rows  pool {found['pool_use']:4.0%}  saving {found['saving']:5.1%}  "
        f"preemptions {found['preemptions']}"
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="8b")
    parser.add_argument("--accelerator", choices=ACCELERATORS, default="h200")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--memory-share", type=float, default=0.9, help="of memory, for weights and cache")
    parser.add_argument("--trace", choices=ALL_TRACES, default="sharegpt")
    parser.add_argument("--kind", choices=("beam", "sample"), default="beam")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--system", nargs="*", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--rate", nargs="*", type=float, default=[0.0], help="requests a second")
    parser.add_argument("--count", type=int, default=1000, help="requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sharpness", type=float, default=SHARPNESS, help="of the fake model")
    parser.add_argument("--max-len", type=int, default=2048, help="tokens a row that 'contiguous' reserves")
    parser.add_argument("--stride", type=int, default=8, help="steps between two plans of the forest")
    parser.add_argument("--first-target", type=float, default=2.0, help="seconds to the first token")
    parser.add_argument("--token-target", type=float, default=0.05, help="seconds a token after it")
    parser.add_argument("--record", type=Path)
    return parser.parse_args(arguments)


def main() -> None:
    args = parse()
    for rate in args.rate:
        for system in args.system:
            found = simulate(args, system, rate)
            if args.record:
                record("simulate", settings(args) | found, args.record)
            print(line(found), flush=True)


if __name__ == "__main__":
    main()
