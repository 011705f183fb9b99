"""Hostile requests: the same for the same seed, of every kind, harmless to the server; and a server that is
not as it must be is found out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from benchmarks.hostile import Found, Striker, attack_server
from benchmarks.hostile_requests import METHODS, Attack, attacks
from benchmarks.hostile_sessions import TreesFound
from benchmarks.hostile_trees import ACTIONS, TreeAttack, tree_attacks
from forkdecode.errors import InvalidRequestError
from forkdecode.results import ServedModel
from forkdecode.rpc.status import status_of
from forkdecode.rpc.v1 import decode_pb2 as pb
from tests.server.servers import running_server, tiny_llm

MODEL = ServedModel("tiny", "float32", 264, 512, (262,), 16, 512, True, True, "0", 4 * 2**20, ("items",))
KINDS = {
    "wrong value",
    "random message",
    "damaged message",
    "garbage",
    "constrained",
    "extreme beam",
    "broken text",
    "unknown field",
    "wrong type in oneof",
    "several of a oneof",
    "too big",
    "huge",
    "huge text",
}


def test_equal_seeds_make_equal_requests_of_every_kind() -> None:
    made = list(attacks(3, MODEL, 600))
    assert made == list(attacks(3, MODEL, 600))
    assert made != list(attacks(4, MODEL, 600))
    assert {attack.kind for attack in made} == KINDS
    assert {attack.method for attack in made} == set(METHODS)


def test_a_server_refuses_or_serves_each_and_its_good_requests_are_exact() -> None:
    with tiny_llm(num_blocks=512, block_size=16) as llm, running_server(llm) as server:
        result = asyncio.run(attack_server(server.address, 300, seed=5, sessions=4))
    assert result["faults"] == []
    assert result["exact_neighbours"] >= 3
    sessions = result["sessions"]
    assert (sessions["count"], sessions["exact_neighbours"] > 0, sessions["resumed"] > 0) == (4, True, True)
    assert sessions["outcomes"]["wrong secret"] == {"INVALID_ARGUMENT": 16}
    codes = {code for outcomes in result["outcomes"].values() for code in outcomes}
    assert {"OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"} >= codes >= {"OK", "INVALID_ARGUMENT"}


TREE_KINDS = {
    "plain",
    "wrong value",
    "wrong record",
    "random command",
    "unknown field",
    "no action",
    "damaged command",
    "garbage",
    "huge",
}


def test_equal_seeds_make_equal_commands_of_every_kind() -> None:
    made = list(tree_attacks(random.Random(3), MODEL, 1, 1000))
    assert made == list(tree_attacks(random.Random(3), MODEL, 1, 1000))
    assert {attack.kind for attack in made} == TREE_KINDS
    numbered = [attack for attack in made if attack.number is not None]
    for attack in numbered:
        assert pb.TreeCommand.FromString(attack.data).command_id == attack.number
    actions = {pb.TreeCommand.FromString(attack.data).WhichOneof("action") for attack in numbered}
    assert actions == {*ACTIONS, None}


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (None, "was accepted"),
        (pb.Error(code=13, message="internal"), "was refused with INTERNAL"),
        (pb.Error(code=3), "was refused without a field"),
        (pb.Error(code=3, path="fork_node.seeds"), "fork_node.seeds was named for fork_node.n"),
        (pb.Error(code=3, path="fork_node.n"), ""),
        (pb.Error(code=8, path="max_nodes"), ""),
    ],
)
def test_what_must_not_be_said_to_a_command_is_a_fault(error: pb.Error | None, fault: str) -> None:
    found = TreesFound()
    found.answered(TreeAttack("wrong value", b"", 1, True, "fork_node.n"), error)
    assert len(found.faults) == bool(fault)
    assert all(fault in one for one in found.faults)


Behaviour = Callable[[bytes, Any], Awaitable[bytes | None]]


@asynccontextmanager
async def bad_server(behaviour: Behaviour) -> AsyncIterator[grpc.aio.Channel]:
    """Answers Decode in one way, whatever it is asked."""

    async def decode(data: bytes, context: Any) -> AsyncIterator[bytes]:
        answer = await behaviour(data, context)
        if answer is not None:
            yield answer

    server = grpc.aio.server()
    handlers = {"Decode": grpc.unary_stream_rpc_method_handler(decode)}
    name = pb.DESCRIPTOR.services_by_name["DecodeService"].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


async def breaks(data: bytes, context: Any) -> bytes | None:
    raise ValueError("internals")


async def serves(data: bytes, context: Any) -> bytes | None:
    return pb.DecodeEvent(finished=pb.Finished()).SerializeToString()


async def ends_early(data: bytes, context: Any) -> bytes | None:
    return pb.DecodeEvent(started=pb.Started()).SerializeToString()


async def names_nothing(data: bytes, context: Any) -> bytes | None:
    await context.abort(*status_of(InvalidRequestError("no")))
    return None


async def names_another(data: bytes, context: Any) -> bytes | None:
    await context.abort(*status_of(InvalidRequestError("no", field="options.stop")))
    return None


WRONG = Attack("wrong value", "Decode", b"", True, "options.max_tokens")
ANY = Attack("garbage", "Decode", b"")


@pytest.mark.parametrize(
    ("behaviour", "attack", "fault"),
    [
        (breaks, ANY, "ended with UNKNOWN"),
        (serves, WRONG, "was served"),
        (ends_early, ANY, "ended without its result"),
        (names_nothing, ANY, "was refused without a field"),
        (names_another, WRONG, "options.stop was named for options.max_tokens"),
        (serves, ANY, ""),
        (names_another, ANY, ""),
    ],
)
def test_what_must_not_be_is_a_fault(behaviour: Behaviour, attack: Attack, fault: str) -> None:
    async def struck() -> Found:
        found = Found()
        async with bad_server(behaviour) as channel:
            await Striker(channel, found).strike(attack)
        return found

    faults = asyncio.run(struck()).faults
    assert len(faults) == bool(fault)
    assert all(fault in one for one in faults)
