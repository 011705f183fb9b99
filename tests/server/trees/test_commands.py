"""Tree sessions by a server: commands, those that are refused, and what is counted of them."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from prometheus_client import generate_latest

from forkdecode import LLM, Sample
from forkdecode.errors import InvalidRequestError
from forkdecode.rpc.convert_tree_commands import OpenCall, ResumeCall, open_message, resume_message
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.server.metrics import Metrics
from forkdecode.tree_types import (
    Accepted,
    Command,
    Decode,
    Done,
    Fork,
    NodeDelta,
    OpenTree,
    Pin,
    Prune,
    Refused,
    ScoreNodes,
    TreeOpened,
    Truncate,
)
from tests.server.puppet import Puppet
from tests.server.servers import Running, running_server
from tests.server.tree_calls import left, raw
from tests.server.trees.sessions import SHORT

UNKNOWN = b"\xc0\x3e\x01"


class TestCommands:
    def test_a_session_from_its_beginning_to_its_end(self, server: Running) -> None:
        with raw(server) as session:
            opened = session.open("hello")
            assert [node.text for node in opened.nodes] == ["hello"]
            assert (opened.grace, opened.idle_timeout, opened.seed) == (60, 600, 3)
            session.command(Decode(1, (0,), Sample(2), SHORT))
            accepted = session.await_event(Accepted)
            assert [node.node for node in accepted.nodes] == [1, 2]
            tokens: dict[int, int] = {}
            for event in session.events():
                if isinstance(event, NodeDelta):
                    tokens[event.node] = tokens.get(event.node, 0) + len(event.token_ids)
                elif isinstance(event, Done):
                    break
            assert tokens == {1: 3, 2: 3}
            session.close()
            assert list(session.events()) == []
            assert session.call.code() is grpc.StatusCode.OK
        assert server.server.trees.count == 0

    def test_each_refused_command_is_named_and_the_session_goes_on(self, server: Running) -> None:
        unknown = pb.TreeCommand(command_id=7, pin_nodes=pb.PinNodes(nodes=[0]))
        unknown.pin_nodes.MergeFromString(UNKNOWN)
        wrong: list[tuple[pb.TreeCommand, str]] = [
            (pb.TreeCommand(command_id=1), "action"),
            (pb.TreeCommand(command_id=2, open_tree=pb.OpenTree()), "action"),
            (pb.TreeCommand(command_id=3, fork_node=pb.ForkNode(node=9)), "fork_node.node"),
            (pb.TreeCommand(command_id=4, fork_node=pb.ForkNode(n=0)), "fork_node.n"),
            (pb.TreeCommand(command_id=5, prune_nodes=pb.PruneNodes(nodes=[0, 9])), "prune_nodes.nodes"),
            (
                pb.TreeCommand(command_id=6, decode_nodes=pb.DecodeNodes(nodes=[0], sample=pb.Sample(n=0))),
                "decode_nodes.sample.n",
            ),
            (unknown, "pin_nodes.1000"),
        ]
        with raw(server) as session:
            session.open()
            for number, (message, path) in enumerate(wrong, 1):
                session.send(message)
                event = session.await_event(Refused)
                assert event.command_id == number
                assert isinstance(event.error, InvalidRequestError)
                assert session.messages[-1].changes[-1].refused.error.path == path
            session.command(Fork(8, 0, 2))
            assert [node.node for node in session.await_event(Accepted).nodes] == [1, 2]
            session.close()
            list(session.events())

    def test_an_id_that_still_runs_is_refused(self, puppet: Puppet) -> None:
        with running_server(puppet.backend()) as server, raw(server) as session:
            session.open()
            session.command(Decode(5, (0,), Sample(), SHORT))
            session.await_event(Accepted)
            session.command(Fork(5, 0))
            refused = session.await_event(Refused)
            assert (refused.command_id, refused.error.field) == (5, "command_id")
            assert session.messages[-1].changes[-1].refused.error.path == "command_id"
            puppet.finish(puppet.job(0), [11, 12, 13])
            assert session.await_event(Done).command_id == 5
            session.command(Fork(5, 0))
            assert session.await_event(Done).command_id == 5

    @pytest.mark.parametrize(
        ("data", "field"),
        [
            (b"\xff\xff", "request"),
            (pb.TreeCommand(fork_node=pb.ForkNode()).SerializeToString(), "action"),
            (pb.TreeCommand(open_tree=pb.OpenTree(prompt=pb.Prompt())).SerializeToString(), "prompt"),
            (pb.TreeCommand(open_tree=pb.OpenTree(prompt=pb.Prompt(text=""))).SerializeToString(), "prompt"),
        ],
    )
    def test_what_begins_no_session_ends_the_call(self, server: Running, data: bytes, field: str) -> None:
        with raw(server) as session:
            session.send(data)
            code, error = session.status()
            assert (code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
        assert server.server.trees.count == 0

    def test_bytes_that_are_no_command_end_the_call_but_not_the_session(self, server: Running) -> None:
        with raw(server) as session:
            opened = session.open()
            session.send(b"\xff\xff")
            code, error = session.status()
            assert (code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "request")
        with raw(server) as session:
            assert session.resume(opened).nodes == opened.nodes
            session.close()
            list(session.events())

    def test_what_it_is_comes_first_whatever_is_sent_at_once(self, server: Running) -> None:
        begin = open_message(OpenCall(OpenTree("hello", seed=3), {}))
        for following in ([], [begin], [pb.TreeCommand(command_id=7)]):
            with raw(server) as session:
                for message in (begin, *following):
                    session.send(message)
                session.half_close()
                opened, *others = session.events()
            assert isinstance(opened, TreeOpened)
            assert [type(event) for event in others] == [Refused] * len(following)
            with raw(server) as session:
                session.send(resume_message(ResumeCall(opened.tree, opened.secret)))
                session.half_close()
                assert [type(event) for event in session.events()] == [TreeOpened]
            with raw(server) as session:
                session.resume(opened)
                session.close()
                assert list(session.events()) == []

    def test_who_sends_no_more_hears_of_its_commands_to_their_end(self, server: Running) -> None:
        with raw(server) as session:
            opened = session.open()
            session.command(Decode(1, (0,), Sample(2), SHORT))
            session.half_close()
            events = list(session.events())
            assert isinstance(events[-1], Done)
            assert session.call.code() is grpc.StatusCode.OK
        with raw(server) as session:
            assert len(session.resume(opened).nodes) == 3
            session.close()
            list(session.events())


def test_metrics_count_sessions_and_nodes(llm: LLM) -> None:
    metrics = Metrics()

    def found() -> dict[str, Any]:
        lines = generate_latest(metrics.registry).decode().splitlines()
        pairs = [line.split() for line in lines if line.startswith("forkdecode_tree_")]
        values = {name.removeprefix("forkdecode_tree_"): float(value) for name, value in pairs}
        return {name: values[name] for name in ("sessions", "sessions_detached", "nodes")}

    with running_server(llm, metrics=metrics) as server:
        assert found() == {"sessions": 0, "sessions_detached": 0, "nodes": 0}
        with raw(server) as session:
            session.open()
            session.command(Fork(1, 0, 3))
            session.await_event(Done)
            assert found() == {"sessions": 1, "sessions_detached": 0, "nodes": 4}
            left(server, session)
        assert found() == {"sessions": 1, "sessions_detached": 1, "nodes": 4}
        assert not any("requests_refused_total" in line for line in _samples(metrics))
    assert found() == {"sessions": 0, "sessions_detached": 0, "nodes": 0}


def _samples(metrics: Metrics) -> list[str]:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_other_commands_by_the_protocol(server: Running) -> None:
    with raw(server) as session:
        session.open()
        commands: list[Command] = [Pin(1, (0,), 5.0), ScoreNodes(2, (0,), ("abc",))]
        for command in [*commands, Truncate(3, 0, 1), Prune(4, (1,))]:
            session.command(command)
            assert session.await_event(Done).command_id == command.command_id
        session.close()
        list(session.events())
