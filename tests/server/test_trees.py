"""Tree sessions by a server: refused commands, lost connections, resuming, ends, limits; nothing leaks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import generate_latest

from forkdecode import LLM, Sample
from forkdecode.errors import (
    CancelledError,
    CapacityError,
    InvalidRequestError,
    QueueFullError,
    UnavailableError,
)
from forkdecode.requests.prepare import RequestMaker
from forkdecode.rpc.convert_tree_commands import OpenCall, ResumeCall, open_message, resume_message
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.server.auth import read_tokens
from forkdecode.server.metrics import Metrics
from forkdecode.server.settings import TreeSettings
from forkdecode.tree_types import (
    Accepted,
    Command,
    Decode,
    Done,
    Export,
    Exported,
    Extend,
    Fork,
    Import,
    NodeDelta,
    OpenTree,
    Pin,
    Prune,
    Refused,
    ScoreNodes,
    TreeOpened,
    Truncate,
)
from forkdecode.types import Options
from tests.client.conftest import settle
from tests.server.puppet import Puppet
from tests.server.servers import Running, running_server, tiny_llm
from tests.server.tree_calls import RawSession, in_loop, left, raw

SHORT = Options(max_tokens=3, ignore_eos=True)
UNKNOWN = b"\xc0\x3e\x01"


class Clock:
    """Seconds, as tests have them pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def engine() -> Iterator[LLM]:
    with tiny_llm() as llm:
        yield llm


@pytest.fixture
def llm(engine: LLM) -> Iterator[LLM]:
    """Each test must leave it idle, with no node held."""
    yield engine
    settle(engine)
    assert engine.stats().held_nodes == 0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(llm: LLM, clock: Clock) -> Iterator[Running]:
    with running_server(llm, clock=clock, trees=TreeSettings(grace=60, idle=600)) as running:
        yield running


@pytest.fixture
def puppet() -> Puppet:
    return Puppet()


def list_until_ended(session: RawSession) -> None:
    """Reads what its server ends the session with."""
    code, _ = session.status()
    assert code is grpc.StatusCode.CANCELLED


def sweep(server: Running) -> int:
    """Has the server look for what is late; how many sessions there are then."""
    in_loop(server, server.server.trees.sweep)
    return server.server.trees.count


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


def test_one_whose_opening_is_not_sent_is_not_kept(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = threading.Event()

    async def never(*_: object) -> None:
        entered.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("forkdecode.server.tree_service.write_in_time", never)
    with raw(server) as session:
        session.send(open_message(OpenCall(OpenTree("hello"), {})))
        assert entered.wait(60)
        left(server, session)
    assert server.server.trees.count == 0


@pytest.mark.parametrize("used", [False, True])
def test_one_whose_opening_may_not_have_been_heard_of_makes_room(llm: LLM, used: bool) -> None:
    with running_server(llm, trees=TreeSettings(max_sessions=1)) as server:
        with raw(server) as session:
            opened = session.open()
            if used:
                session.command(Fork(1, 0))
                session.await_event(Done)
            left(server, session)
        with raw(server) as session:
            if used:
                session.send(open_message(OpenCall(OpenTree("hello"), {})))
                assert type(session.status()[1]) is QueueFullError
            else:
                session.open()
        with raw(server) as session:
            if used:
                session.resume(opened)
            else:
                session.send(resume_message(ResumeCall(opened.tree, opened.secret)))
                assert type(session.status()[1]) is InvalidRequestError


def test_no_sessions_at_all_is_no_full_queue(puppet: Puppet) -> None:
    """Waiting does not help."""
    with (
        running_server(puppet.backend(), trees=TreeSettings(max_sessions=0)) as server,
        raw(server) as session,
    ):
        session.send(open_message(OpenCall(OpenTree("hello"), {})))
        code, error = session.status()
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert type(error) is CapacityError
    assert (error.field, error.retry_after) == ("max_sessions", None)


def test_an_engine_lost_while_a_session_is_opened_is_what_its_caller_hears(
    puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = RequestMaker.tokenize

    def tokenize(self: RequestMaker, *prompt: Any, **more: Any) -> Any:
        puppet.become("down")
        for _ in server.lines("trees_ended", 1):
            return plain(self, *prompt, **more)

    with running_server(puppet.backend()) as server, raw(server) as session:
        monkeypatch.setattr(RequestMaker, "tokenize", tokenize)
        session.send(open_message(OpenCall(OpenTree("hello"), {})))
        code, error = session.status()
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "the engine ended" in str(error)


class TestLostConnections:
    def test_resumed_as_it_was(self, server: Running) -> None:
        with raw(server) as first:
            opened = first.open()
            first.command(Decode(1, (0,), Sample(2), SHORT))
            first.await_event(Done)
            first.command(Extend(2, 1, "abc"))
            first.await_event(Done)
            left(server, first)
        assert server.server.trees.num_detached == 1
        with raw(server) as second:
            again = second.resume(opened)
            assert (again.tree, again.secret, again.seed) == (opened.tree, opened.secret, opened.seed)
            assert [node.node for node in again.nodes] == [0, 1, 2, 3]
            assert again.nodes[3].text == "abc"
            assert server.server.trees.num_detached == 0
            second.command(Decode(1, (3,), Sample(), SHORT))
            assert second.await_event(Accepted).nodes[0].node == 4
            second.await_event(Done)
            second.close()
            list(second.events())

    def test_what_runs_goes_on_and_earlier_commands_get_no_answers(self, puppet: Puppet) -> None:
        with running_server(puppet.backend()) as server:
            with raw(server) as first:
                opened = first.open()
                first.command(Decode(1, (0,), Sample(), Options(max_tokens=4)))
                job = puppet.job(0)
                puppet.step(job, [11])
                first.await_event(NodeDelta)
                left(server, first)
            puppet.step(job, [12])
            with raw(server) as second:
                node = second.resume(opened).nodes[1]
                assert (node.state, node.token_ids) == ("generating", (11, 12))
                second.command(Fork(1, 0))  # the id of the command that still runs
                assert second.await_event(Done).command_id == 1
                puppet.step(job, [13])
                assert second.await_event(NodeDelta).token_ids == (13,)
                puppet.finish(job, [11, 12, 13])
                second.command(Fork(2, 0))
                assert second.await_event(Done).command_id == 2
                second.close()
                list(second.events())

    def test_a_connection_that_takes_over_ends_the_other(self, server: Running) -> None:
        with raw(server) as first, raw(server) as second:
            opened = first.open()
            second.resume(opened)
            code, error = first.status()
            assert code is grpc.StatusCode.CANCELLED
            assert isinstance(error, CancelledError)
            second.command(Fork(1, 0))
            second.await_event(Done)
            second.close()
            list(second.events())

    def test_freed_when_the_grace_is_over(self, server: Running, clock: Clock, llm: LLM) -> None:
        with raw(server) as session:
            opened = session.open()
            session.command(Decode(1, (0,), Sample(4), SHORT))
            session.await_event(Done)
            assert llm.stats().held_nodes > 0
            left(server, session)
        clock.now += 59.9
        assert sweep(server) == 1
        clock.now += 0.1
        assert sweep(server) == 0
        with raw(server) as late:
            late.send(pb.TreeCommand(resume_tree=pb.ResumeTree(tree=opened.tree, secret=opened.secret)))
            code, error = late.status()
            assert (code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "tree")

    def test_resuming_is_a_use(self, server: Running, clock: Clock) -> None:
        with raw(server) as first:
            opened = first.open()
            clock.now += 599
            left(server, first)
        clock.now += 1
        with raw(server) as second:
            second.resume(opened)
            clock.now += 599
            assert sweep(server) == 1
            clock.now += 1
            assert sweep(server) == 0
            list_until_ended(second)

    def test_the_grace_begins_anew(self, server: Running, clock: Clock) -> None:
        with raw(server) as session:
            opened = session.open()
            left(server, session)
        clock.now += 59
        with raw(server) as session:
            session.resume(opened)
            clock.now += 59
            assert sweep(server) == 1
            left(server, session, 2)
        clock.now += 59
        assert sweep(server) == 1
        clock.now += 1
        assert sweep(server) == 0

    def test_what_generates_is_cancelled_with_the_session(self, puppet: Puppet, clock: Clock) -> None:
        settings = TreeSettings(grace=10)
        with running_server(puppet.backend(), clock=clock, trees=settings) as server:
            with raw(server) as session:
                session.open()
                session.command(Decode(1, (0,), Sample(), SHORT))
                puppet.job(0)
                left(server, session)
            clock.now += 10
            assert sweep(server) == 0
            puppet.await_cancel()

    def test_a_wrong_secret_is_an_unknown_session(self, server: Running) -> None:
        texts = []
        with raw(server) as session:
            opened = session.open()
            for tree, secret in ((opened.tree, "wrong"), (opened.tree, ""), ("tree-0", opened.secret)):
                with raw(server) as other:
                    other.send(pb.TreeCommand(resume_tree=pb.ResumeTree(tree=tree, secret=secret)))
                    code, error = other.status()
                    assert code is grpc.StatusCode.INVALID_ARGUMENT
                    texts.append(str(error).replace(tree, "?"))
            assert len(set(texts)) == 1
            session.close()
            list(session.events())


class TestEnds:
    def test_of_a_session_that_is_not_used(self, server: Running, clock: Clock) -> None:
        with raw(server) as session:
            session.open()
            clock.now += 500
            session.command(Fork(1, 0))
            session.await_event(Done)
            clock.now += 599
            assert sweep(server) == 1
            clock.now += 1
            assert sweep(server) == 0
            code, error = session.status()
            assert code is grpc.StatusCode.CANCELLED
            assert "idle for 600 seconds" in str(error)

    def test_what_generates_is_not_idle(self, puppet: Puppet, clock: Clock) -> None:
        settings = TreeSettings(idle=10)
        with running_server(puppet.backend(), clock=clock, trees=settings) as server, raw(server) as session:
            session.open()
            session.command(Decode(1, (0,), Sample(), SHORT))
            job = puppet.job(0)
            session.await_event(Accepted)
            clock.now += 100
            assert sweep(server) == 1
            puppet.finish(job, [11])
            session.await_event(Done)
            clock.now += 100
            assert sweep(server) == 0

    def test_of_the_engine_and_what_was_exported_goes_on(self, puppet: Puppet) -> None:
        with running_server(puppet.backend()) as server:
            with raw(server) as session, raw(server) as away:
                session.open()
                away.open()
                left(server, away)
                session.command(Extend(1, 0, "abc"))
                session.await_event(Done)
                session.command(Export(2, (0, 1)))
                paths = session.await_event(Exported).paths
                puppet.become("down")
                code, error = session.status()
                assert code is grpc.StatusCode.UNAVAILABLE
                assert isinstance(error, UnavailableError)
                assert error.retry_after
            assert server.server.trees.count == 0
            puppet.become("serving")
            with raw(server) as session:
                session.open(None)
                session.command(Import(1, paths))
                nodes = session.await_event(Accepted).nodes
                assert [(node.node, node.parent, node.text) for node in nodes] == [
                    (0, None, "hello"),
                    (1, 0, "abc"),
                ]

    def test_of_a_server_that_drains(self, puppet: Puppet) -> None:
        with (
            running_server(puppet.backend()) as server,
            raw(server) as idle,
            raw(server) as busy,
            raw(server) as away,
        ):
            idle.open()
            busy.open()
            away.open()
            left(server, away)
            busy.command(Decode(1, (0,), Sample(), SHORT))
            job = puppet.job(0)
            busy.await_event(Accepted)
            draining = server.begin(server.server.drain(60))
            assert idle.status()[0] is grpc.StatusCode.UNAVAILABLE
            busy.command(Fork(2, 0))
            assert isinstance(busy.await_event(Refused).error, UnavailableError)
            assert server.server.trees.count == 1
            puppet.step(job, [11])
            puppet.finish(job, [11])
            assert busy.await_event(Done).command_id == 1
            assert busy.status()[0] is grpc.StatusCode.UNAVAILABLE
            draining.result(60)

    def test_of_a_server_that_waits_no_longer(self, puppet: Puppet) -> None:
        with running_server(puppet.backend()) as server, raw(server) as busy, raw(server) as other:
            names = {session: session.open().tree for session in (busy, other)}
            for count, session in enumerate(names):
                session.command(Decode(1, (0,), Sample(), SHORT))
                puppet.job(count)
            server.begin(server.server.drain(0)).result(60)
            for session, name in names.items():
                code, error = session.status()
                assert code is grpc.StatusCode.UNAVAILABLE
                assert error.request_id == name
            puppet.await_cancel(2)


TOKENS = """
[[tokens]]
name = "small"
token = "small-secret"
max_sessions = 2
max_tree_nodes = 40
max_tree_blocks = 100
max_row_tokens = 100

[[tokens]]
name = "large"
token = "large-secret"
"""
SMALL = [("authorization", "Bearer small-secret")]
LARGE = [("authorization", "Bearer large-secret")]


class TestLimits:
    @pytest.fixture
    def server(self, puppet: Puppet, tmp_path: Path) -> Iterator[Running]:
        path = tmp_path / "tokens.toml"
        path.write_text(TOKENS)
        settings = TreeSettings(max_sessions=4)
        with running_server(puppet.backend(), tokens=read_tokens(path), trees=settings) as running:
            yield running

    def test_sessions_of_a_caller_and_of_all(self, server: Running) -> None:
        with raw(server, SMALL) as one, raw(server, SMALL) as two, raw(server, SMALL) as three:
            one.open()
            two.open()
            three.send(pb.TreeCommand(open_tree=pb.OpenTree()))
            code, error = three.status()
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (type(error), error.field) == (QueueFullError, "max_sessions")
            with raw(server, LARGE) as four, raw(server, LARGE) as five, raw(server, LARGE) as six:
                four.open()
                five.open()
                six.send(pb.TreeCommand(open_tree=pb.OpenTree()))
                assert type(six.status()[1]) is QueueFullError
            one.close()
            list(one.events())
            with raw(server, SMALL) as again:
                again.open()

    def test_nodes_and_blocks_are_shared_among_a_callers_sessions(self, server: Running) -> None:
        with raw(server, SMALL) as one, raw(server, SMALL) as two, raw(server, SMALL) as three:
            limits = one.open().limits
            assert (limits.max_nodes, limits.max_blocks) == (20, 50)
            two.send(pb.TreeCommand(open_tree=pb.OpenTree(limits=pb.TreeLimits(max_nodes=21))))
            error = two.status()[1]
            assert (type(error), error.field) == (QueueFullError, "max_nodes")
            three.send(pb.TreeCommand(open_tree=pb.OpenTree(limits=pb.TreeLimits(max_blocks=101))))
            error = three.status()[1]
            assert (type(error), error.field) == (CapacityError, "max_blocks")
            one.command(Fork(1, 0, 20))
            refused = one.await_event(Refused).error
            assert (type(refused), refused.field) == (CapacityError, "max_nodes")
            one.command(Fork(2, 0, 19))
            one.await_event(Done)

    def test_a_session_gets_no_more_than_the_server_lets_it(self, server: Running) -> None:
        with raw(server, LARGE) as session:
            limits = session.open(max_nodes=2**31 - 1, max_depth=3).limits
            assert (limits.max_nodes, limits.max_depth) == (65536, 3)

    def test_row_tokens_of_what_runs(self, server: Running, puppet: Puppet) -> None:
        options = Options(max_tokens=20)
        with raw(server, SMALL) as session:
            session.open((3, 4))
            session.command(Decode(1, (0,), Sample(3), options))
            session.await_event(Accepted)
            session.command(Decode(2, (0,), Sample(2), options))
            refused = session.await_event(Refused).error
            assert (type(refused), refused.field) == (QueueFullError, "max_row_tokens")
            session.command(Decode(3, (0,), Sample(5), options))
            assert type(session.await_event(Refused).error) is CapacityError
            puppet.finish(puppet.job(0), [11], [12], [13])
            session.await_event(Done)
            session.command(Decode(4, (0,), Sample(4), options))
            session.await_event(Accepted)

    def test_a_session_is_its_callers(self, server: Running) -> None:
        with raw(server, SMALL) as mine, raw(server, LARGE) as other:
            opened = mine.open()
            other.send(pb.TreeCommand(resume_tree=pb.ResumeTree(tree=opened.tree, secret=opened.secret)))
            assert other.status()[1].field == "tree"

    def test_without_a_token_no_session(self, server: Running) -> None:
        with raw(server) as session:
            session.send(pb.TreeCommand(open_tree=pb.OpenTree()))
            assert session.status()[0] is grpc.StatusCode.UNAUTHENTICATED


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
