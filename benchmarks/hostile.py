"""Hostile requests against a server: each is refused properly or served, and hurts nobody.

    python -m benchmarks.hostile --spawn [--requests 10000] [--sessions 200]   a server of a tiny random model
    python -m benchmarks.hostile --address HOST:PORT                  one that runs, with nothing else to do

Half of the requests go one by one, and the engine's steps are read around each: a refused one must not have
reached the engine. The other half go several at a time, while good requests run beside them whose results
must stay exact. Then come tree sessions (hostile_sessions): half of them one by one, the other half at once
beside a good one, whose tree must stay what it is. Prints a record; the exit code is 1 when something was not
as it must be.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import grpc.aio

from benchmarks.hostile_requests import METHODS, Attack, attacks
from benchmarks.hostile_sessions import attack_sessions
from benchmarks.record import record
from forkdecode.constraints.catalogue_build import build_catalogue
from forkdecode.constraints.catalogue_file import save_catalogue
from forkdecode.errors import ForkdecodeError
from forkdecode.results import Candidate, Finished, ServedModel
from forkdecode.rpc.convert_events import Events, served_model
from forkdecode.rpc.convert_requests import DecodeCall, decode_request
from forkdecode.rpc.status import error_of
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.rpc.v1.decode_pb2_grpc import DecodeServiceStub
from forkdecode.types import Beam, DiverseBeam, Greedy, Options, Sample, StochasticBeam, Strategy

SERVICE = pb.DESCRIPTOR.services_by_name["DecodeService"].full_name
DEADLINE = 60.0
"""Seconds after which a request counts as one that hangs."""
REFUSALS = ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")
GOOD: tuple[Strategy, ...] = (
    Greedy(),
    Sample(n=3, seed=7),
    Beam(width=3),
    DiverseBeam(width=4),
    StochasticBeam(width=3, seed=7),
)


@dataclass
class Found:
    """What came of it. faults: what must not be, in words."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    neighbours: list[float] = field(default_factory=list)
    """Seconds of each exact result of a good request."""

    def judge(self, attack: Attack, code: str, error: ForkdecodeError | None, whole: bool) -> None:
        """One request and how it ended."""
        self.outcomes.setdefault(attack.kind, Counter())[code] += 1
        problem = _problem(attack, code, error, whole)
        if problem:
            self.faults.append(f"{attack.kind}, {attack.method}: {problem}: {attack.data[:200].hex()}")


def _problem(attack: Attack, code: str, error: ForkdecodeError | None, whole: bool) -> str:
    if error is None:
        if not whole:
            return "ended without its result"
        return "was served" if attack.refused else ""
    if code == "INTERNAL" and not attack.refused and "no legal token" in str(error):
        return ""  # what it forbids leaves nothing to generate, which shows as it runs
    if code not in REFUSALS:
        return f"ended with {code}: {error}"
    if code == "INVALID_ARGUMENT" and not error.field:
        return f"was refused without a field: {error}"
    return ""


class Striker:
    """Sends bytes as they are."""

    def __init__(self, channel: grpc.aio.Channel, found: Found) -> None:
        self._found = found
        self._calls: dict[str, Any] = {
            method: channel.unary_stream(f"/{SERVICE}/{method}")
            if method == "Decode"
            else channel.unary_unary(f"/{SERVICE}/{method}")
            for method in METHODS
        }

    async def strike(self, attack: Attack) -> str:
        """The status that it got."""
        error, code, whole = None, "OK", True
        try:
            call = self._calls[attack.method](attack.data, timeout=DEADLINE)
            if attack.method == "Decode":
                whole = _is_last([message async for message in call])
            else:
                await call
        except grpc.aio.AioRpcError as failure:
            error, code = error_of(failure), failure.code().name
            if attack.path and _path(failure) != attack.path and code == "INVALID_ARGUMENT":
                self._found.faults.append(f"{_path(failure)} was named for {attack.path}: {error}")
        self._found.judge(attack, code, error, whole)
        return code


def _is_last(messages: list[bytes]) -> bool:
    return bool(messages) and pb.DecodeEvent.FromString(messages[-1]).HasField("finished")


def _path(failure: grpc.aio.AioRpcError) -> str:
    """The field that the status names."""
    from google.rpc import error_details_pb2, status_pb2

    for key, value in failure.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            for detail in status_pb2.Status.FromString(value).details:
                bad = error_details_pb2.BadRequest()
                if detail.Unpack(bad):
                    return str(bad.field_violations[0].field)
    return ""


class Neighbour:
    """Good requests whose results are known."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self._known: list[tuple[Candidate, ...]] = []

    async def learn(self) -> None:
        """Their results with nothing beside them."""
        self._known = [await self._decode(strategy) for strategy in GOOD]

    async def run(self, found: Found, until: asyncio.Event) -> None:
        """Again and again."""
        while not until.is_set():
            for strategy, known in zip(GOOD, self._known, strict=True):
                begin = time.perf_counter()
                try:
                    same = await self._decode(strategy) == known
                except grpc.aio.AioRpcError as error:
                    found.faults.append(f"neighbour {strategy}: {error.code()} {error.details()}")
                    continue
                found.neighbours.append(time.perf_counter() - begin)
                if not same:
                    found.faults.append(f"neighbour {strategy}: another result")

    async def _decode(self, strategy: Strategy) -> tuple[Candidate, ...]:
        options = Options(max_tokens=24, ignore_eos=True, logprobs=2)
        request = decode_request(DecodeCall((5, 6, 7, 8, 9), strategy, options, stream=True))
        events = Events(strategy)
        last: Any = None
        async for message in self._stub.Decode(request, timeout=DEADLINE):
            last = events.of(message)[-1]
        assert isinstance(last, Finished)
        return last.result.candidates


async def alone(striker: Striker, stub: Any, hostile: Iterable[Attack], found: Found) -> int:
    """One by one; what is refused costs the engine no step. How many were refused."""
    refused = 0
    before = await stub.GetStats(pb.GetStatsRequest())
    for attack in hostile:
        code = await striker.strike(attack)
        after = await stub.GetStats(pb.GetStatsRequest())
        if code != "OK":
            refused += 1
        if code in REFUSALS and after.steps != before.steps:
            found.faults.append(f"{attack.kind}: refused after {after.steps - before.steps} steps")
        before = after
    return refused


async def together(striker: Striker, hostile: Iterable[Attack], streams: int) -> None:
    """Several at a time."""
    left = iter(hostile)

    async def strike_on() -> None:
        for attack in left:
            await striker.strike(attack)

    await asyncio.gather(*(strike_on() for _ in range(streams)))


async def attack_server(
    address: str, count: int, seed: int, streams: int = 8, sessions: int = 0
) -> dict[str, Any]:
    """All of it; the result of a record, with what must not be under "faults"."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    found, done = Found(), asyncio.Event()
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        stub: Any = DecodeServiceStub(channel)
        # On a busy machine a server may take more than gRPC's 20 s to answer its first connection.
        asked = stub.GetModel(pb.GetModelRequest(), timeout=DEADLINE, wait_for_ready=True)
        model: ServedModel = served_model(await asked)
        striker, neighbour = Striker(channel, found), Neighbour(stub)
        await neighbour.learn()
        begin = time.perf_counter()
        refused = await alone(striker, stub, attacks(seed, model, count // 2), found)
        good = asyncio.create_task(neighbour.run(found, done))
        await together(striker, attacks(seed + 1, model, count - count // 2), streams)
        done.set()
        await good
        trees = await attack_sessions(address, channel, stub, model, seed, sessions)
        seconds = time.perf_counter() - begin
        stats = await _rested(stub)
    if stats.used_blocks or stats.running_groups or stats.waiting_groups or stats.held_nodes:
        left = f"{stats.used_blocks} {stats.running_groups} {stats.held_nodes}"
        found.faults.append(f"blocks, requests or nodes are left: {left}")
    return {
        "requests": count,
        "seconds": round(seconds, 1),
        "outcomes": {kind: dict(codes) for kind, codes in sorted(found.outcomes.items())},
        "refused_without_a_step": refused,
        "exact_neighbours": len(found.neighbours),
        "neighbour_seconds": {
            "median": round(median(found.neighbours), 3),
            "worst": round(max(found.neighbours), 3),
        },
        "sessions": trees.as_record(),
        "faults": (found.faults + trees.faults)[:50],
    }


async def _rested(stub: Any) -> pb.GetStatsResponse:
    """The stats once nothing runs, or after ten seconds."""
    for _ in range(100):
        stats: pb.GetStatsResponse = await stub.GetStats(pb.GetStatsRequest())
        if not stats.running_groups and not stats.waiting_groups:
            break
        await asyncio.sleep(0.1)
    return stats


def _catalogues(folder: Path) -> list[str]:
    """Flags for a catalogue that ends in both ways, and one with an item that begins another."""
    flags = []
    for name, items in {"items": [[1, 2], [1, 3, 4], [5]], "nested": [[1], [1, 2]]}.items():
        save_catalogue(build_catalogue(items), folder / name)
        flags += ["--catalogue", f"{name}={folder / name}"]
    return flags


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--address", help="host:port of a server that runs")
    where.add_argument("--spawn", action="store_true", help="start one of a tiny random model")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--sessions", type=int, default=200, help="tree sessions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--streams", type=int, default=8, help="requests at a time in the second half")
    parser.add_argument("--record", type=Path, help="append the record to this file")
    args = parser.parse_args()
    with ExitStack() as stack:
        address = args.address
        if args.spawn:
            from benchmarks.load.server_process import server
            from tests.tiny_model import save_tiny_llama

            folder = stack.enter_context(tempfile.TemporaryDirectory())
            model = save_tiny_llama(Path(folder))
            flags = ["--num-blocks", "512", *_catalogues(Path(folder))]
            address = stack.enter_context(server(str(model), flags)).address
        result = asyncio.run(attack_server(address, args.requests, args.seed, args.streams, args.sessions))
    record("hostile", {"seed": args.seed, **result}, args.record)
    return 1 if result["faults"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
