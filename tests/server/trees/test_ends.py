"""Tree sessions by a server: how they end."""

from __future__ import annotations

import grpc

from forkdecode import Sample
from forkdecode.errors import UnavailableError
from forkdecode.server.settings import TreeSettings
from forkdecode.tree_types import Accepted, Decode, Done, Export, Exported, Extend, Fork, Import, Refused
from tests.server.puppet import Puppet
from tests.server.servers import Running, running_server
from tests.server.tree_calls import left, raw
from tests.server.trees.sessions import SHORT, Clock, sweep


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
