"""Tree sessions by a server: lost connections, and resuming."""

from __future__ import annotations

import grpc

from forkdecode import LLM, Sample
from forkdecode.errors import CancelledError
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.server.settings import TreeSettings
from forkdecode.tree_types import Accepted, Decode, Done, Extend, Fork, NodeDelta
from forkdecode.types import Options
from tests.server.puppet import Puppet
from tests.server.servers import Running, running_server
from tests.server.tree_calls import left, raw
from tests.server.trees.sessions import SHORT, Clock, list_until_ended, sweep


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
