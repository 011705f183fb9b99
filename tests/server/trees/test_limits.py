"""Tree sessions by a server: what callers may take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from forkdecode import Sample
from forkdecode.errors import CapacityError, QueueFullError
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.server.auth import read_tokens
from forkdecode.server.settings import TreeSettings
from forkdecode.tree_types import Accepted, Decode, Done, Fork, Refused
from forkdecode.types import Options
from tests.server.puppet import Puppet
from tests.server.servers import Running, running_server
from tests.server.tree_calls import raw

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
