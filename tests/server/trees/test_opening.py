"""Tree sessions by a server: openings that come to nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc
import pytest

from forkdecode import LLM
from forkdecode.errors import CapacityError, InvalidRequestError, QueueFullError
from forkdecode.requests.prepare import RequestMaker
from forkdecode.rpc.convert_tree_commands import OpenCall, ResumeCall, open_message, resume_message
from forkdecode.server.settings import TreeSettings
from forkdecode.tree_types import Done, Fork, OpenTree
from tests.server.puppet import Puppet
from tests.server.servers import Running, running_server
from tests.server.tree_calls import left, raw


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
