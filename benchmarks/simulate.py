"""How many requests a second one accelerator carries, and what sharing buys: a simulation in which all
but the model is real.

    python -m benchmarks.simulate [--model 8b] [--accelerator h200] [--devices 1] [--trace sharegpt]
        [--kind beam] [--width 8] [--system forest paged ...] [--rate R ...] [--count N]
        [--seconds S [--find | --overload]] [--host-us STEP GROUP REQUEST] [--record FILE]
        [--checkpoint FILE]

The scheduler, the block pool, the strategies and the forest plan are the engine's own. The model is a fake
(simulate_model.py) whose beams share as much as a real model's (--sharpness, see docs/capacity.md);
a step takes what a roofline of the accelerator says (simulate_cost.py). Requests of the trace's lengths
arrive at each rate, at random (Poisson); rate 0 is all at once. --seconds keeps them coming for as long at
each rate, and the first quarter counts for nothing: a steady load, given up where it is not carried. --find
looks for the highest rate that is, from the first --rate on. --overload gives nothing up before the last
request has arrived: what is then served of more than is carried is what a system can do. Only requests that
run are in memory, so a million can be simulated. Systems:

    forest       blocks are shared, and attention reads a shared block once for all its rows
    paged        blocks are shared, attention reads every row's whole context
    copied       blocks, but each row has its own: one row reads the prompt, and the others copy what that
                 stored; a beam's row that leaves its parent's place copies it all
    unshared     the same, and each row reads the prompt
    exact        unshared, and a row's memory is reserved at arrival, by what it will turn out to need
    contiguous   the same with --max-len tokens for each, and all rows are copied when beams move

The host's time is not in the simulated clock; it is measured and reported beside (host_ms_a_step). With
--host-us it is: so many microseconds a step, a group whose rows decode in it, and a request, in which the
devices wait.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

from benchmarks.memory_trace import TRACES, Trace
from benchmarks.record import record
from benchmarks.simulate_cost import ACCELERATORS, MODELS, CostModel, Host
from benchmarks.simulate_load import SYSTEMS, Load
from benchmarks.simulate_run import Simulation
from benchmarks.simulate_search import limit
from benchmarks.simulate_served import Target

SHARPNESS = 8.0
ATTAINED = 0.9
"""Of the requests, as many must meet the target for a rate to be carried."""
CHECKPOINT_SECONDS = 60.0
SHORT = Trace("short", 128.0, 10.0)
"""Answers of a few words: the most requests for the least work, as for 10^4 of them in a test."""
BRIEF = Trace("brief", 19.31, 10.0)
"""The same to Alpaca's prompts."""
ALL_TRACES = TRACES | {SHORT.name: SHORT, BRIEF.name: BRIEF}


def settings(args: argparse.Namespace) -> dict[str, Any]:
    names = (
        "model",
        "accelerator",
        "devices",
        "trace",
        "kind",
        "width",
        "seed",
        "sharpness",
        "memory_share",
    )
    found = {n: getattr(args, n) for n in (*names, "max_len", "first_target", "token_target", "stride")}
    # A load whose clock has the host's time is told of apart from the same without it.
    host = {"host_us": "/".join(f"{us:g}" for us in args.host_us)} if args.host_us else {}
    # 0 for a load that lasts as long at each rate: so its rates are told of together.
    return found | host | {"count": 0 if args.seconds else args.count, "load_seconds": args.seconds}


def made(args: argparse.Namespace, system: str, rate: float) -> Simulation:
    cost = CostModel(ACCELERATORS[args.accelerator], MODELS[args.model], args.devices, args.memory_share)
    count = math.ceil(rate * args.seconds) if args.seconds else args.count
    return Simulation(
        SYSTEMS[system],
        Load(ALL_TRACES[args.trace], args.kind, args.width, count, rate, args.seed),
        cost,
        sharpness=args.sharpness,
        target=Target(args.first_target, args.token_target),
        max_len=args.max_len,
        stride=args.stride,
        host=Host(*(us / 1e6 for us in args.host_us or ())),
    )


def result(args: argparse.Namespace, simulation: Simulation) -> dict[str, Any]:
    """What is recorded; of a load that was given up, or has not ended yet, what is known so far."""
    load, left = simulation.load, simulation.load.count - simulation.served.finished
    return {
        **settings(args),
        "requests": load.count,
        "system": simulation.system.name,
        "rate": round(load.rate, 3),
        "pool_tokens": simulation.cost.pool_tokens,
        **simulation.report(),
        "left": left,
    }


def simulate(args: argparse.Namespace, system: str, rate: float) -> dict[str, Any]:
    """One rate. With --seconds it is given up once too many have missed their target: it is not carried; with
    --overload, once the last has arrived."""
    simulation = made(args, system, rate)
    allowed = missable(simulation.load.count) if args.seconds else simulation.load.count
    watch = Progress(args.checkpoint, args) if args.checkpoint else None

    def tell(running: Simulation) -> bool:
        if watch:
            watch.look(running)
        return bool(running.now <= running.arrivals[-1]) if args.overload else running.missed <= allowed

    found = result(args, simulation.run(tell))
    if found["left"]:
        found["met"] = min(found["met"], 1 - simulation.missed / simulation.load.count)
    if args.record:
        record("simulate", found, args.record)
    print(line(found), flush=True)
    return found


def missable(count: int) -> int:
    """Of so many requests, how many may miss the target where the load is carried."""
    return math.floor(count * (1 - ATTAINED) + 1e-6)


def find(args: argparse.Namespace, system: str) -> None:
    """The highest rate that is carried, between the rates that were simulated."""
    low, high = limit(
        lambda rate: bool(simulate(args, system, rate)["met"] >= ATTAINED), args.rate[0], args.precision
    )
    print(f"{system}: carries {low:.1f} a second, not {high:.1f}", flush=True)


class Progress:
    """Writes what is known so far to a file, now and then, so that a long run that is stopped has told
    something."""

    def __init__(self, path: Path, args: argparse.Namespace) -> None:
        self._path, self._args, self._last = path, args, time.monotonic()

    def look(self, simulation: Simulation) -> None:
        if simulation.served.finished and time.monotonic() - self._last > CHECKPOINT_SECONDS:
            self._last = time.monotonic()
            with self._path.open("a") as file:
                file.write(json.dumps(result(self._args, simulation)) + "\n")


def line(found: dict[str, Any]) -> str:
    return (
        f"{found['system']:10s} rate {found['rate']:7.2f}  served {found['requests_per_second']:7.2f}/s  "
        f"in time {found['met']:4.0%}  goodput {found['goodput']:7.2f}/s  step {found['step_ms']:6.1f} ms of "
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
    parser.add_argument("--seconds", type=float, help="of arrivals, at each rate, instead of --count")
    parser.add_argument("--find", action="store_true", help="bisect between rates, from the first --rate on")
    parser.add_argument("--overload", action="store_true", help="until the last has arrived, however late")
    parser.add_argument("--precision", type=float, default=0.03, help="of --find, relative")
    parser.add_argument("--checkpoint", type=Path, help="what is known so far goes here, once a minute")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sharpness", type=float, default=SHARPNESS, help="of the fake model")
    parser.add_argument("--max-len", type=int, default=2048, help="tokens a row that 'contiguous' reserves")
    parser.add_argument("--stride", type=int, default=8, help="steps between two plans of the forest")
    parser.add_argument("--first-target", type=float, default=2.0, help="seconds to the first token")
    parser.add_argument("--token-target", type=float, default=0.05, help="seconds a token after it")
    parser.add_argument("--host-us", nargs=3, type=float, metavar=("STEP", "GROUP", "REQUEST"))
    parser.add_argument("--record", type=Path)
    return parser.parse_args(arguments)


def main() -> None:
    args = parse()
    if args.find and not (args.seconds and args.rate[0] > 0):
        raise SystemExit("--find needs --seconds and a --rate above 0 to begin with")
    if args.overload and (args.find or not (args.seconds and min(args.rate) > 0)):
        raise SystemExit("--overload needs --seconds and each --rate above 0, and no --find")
    for system in args.system:
        if args.find:
            find(args, system)
            continue
        for rate in args.rate:
            simulate(args, system, rate)


if __name__ == "__main__":
    main()
