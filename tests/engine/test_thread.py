"""The engine's thread, on the toy model: whatever happens, everybody gets an answer."""

from __future__ import annotations

import dataclasses
import queue
import threading
from typing import Any

import pytest

from forkdecode.engine.core import Engine
from forkdecode.engine.thread import EngineThread, Job
from forkdecode.errors import (
    CancelledError,
    CapacityError,
    EngineClosedError,
    GroupFailedError,
    InvalidRequestError,
)
from forkdecode.scheduler.events import GroupFailed, GroupFinished
from forkdecode.scheduler.request import DecodeRequest, NodeRef, Release, Share
from forkdecode.types import Beam, Greedy, Sample
from tests.engine.forked import in_a_forked_child
from tests.scheduler.engines import assert_idle, request, toy_engine


class Client:
    """Sends requests and waits for their last events."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.thread = EngineThread(engine)
        self.boxes: dict[str, queue.SimpleQueue[Any]] = {}

    def job(self, what: DecodeRequest) -> Job:
        self.boxes[what.request_id] = queue.SimpleQueue()
        return Job(what, self.boxes[what.request_id].put)

    def send(self, *requests: DecodeRequest) -> None:
        self.thread.submit([self.job(r) for r in requests])

    def last(self, name: str) -> Any:
        return self.boxes[name].get(timeout=60)


def test_requests_end_with_one_last_event() -> None:
    client = Client(toy_engine())
    client.send(*(request(f"r{i}", [i + 3], Sample(n=2, seed=i), max_tokens=5) for i in range(20)))
    for i in range(20):
        assert isinstance(client.last(f"r{i}"), GroupFinished)
        assert client.boxes[f"r{i}"].empty()
    assert client.thread.stats().finished_groups == 20
    client.thread.close()
    assert_idle(client.engine)


def test_a_cancel_is_for_one_request_not_for_its_name() -> None:
    client = Client(toy_engine())
    old = request("x", [3], Greedy(), max_tokens=1)
    client.send(old)
    client.last("x")
    new = request("x", [3], Greedy(), max_tokens=3000)
    client.send(new)
    client.thread.cancel(old)
    assert client.thread.stats().failed_groups == 0
    client.thread.cancel(new)
    event = client.last("x")
    assert isinstance(event, GroupFailed)
    assert isinstance(event.error, CancelledError)
    client.thread.close()
    assert_idle(client.engine)


def test_a_request_that_the_scheduler_chokes_on_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(toy_engine())
    add = client.engine.scheduler.add

    def choke(what: DecodeRequest) -> None:
        if what.request_id == "bad":
            raise KeyError("a bug")
        add(what)

    monkeypatch.setattr(client.engine.scheduler, "add", choke)
    client.send(
        request("good", [3], Beam(width=3), max_tokens=9), request("bad", [3], Greedy(), max_tokens=9)
    )
    error = client.last("bad")
    assert isinstance(error, GroupFailedError)
    assert "internal error: KeyError" in str(error)
    assert isinstance(client.last("good"), GroupFinished)
    client.thread.close()
    assert_idle(client.engine)


def test_an_engine_that_dies_tells_everybody(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(toy_engine())

    def die() -> None:
        raise RuntimeError("the scheduler is broken")

    monkeypatch.setattr(client.engine.scheduler, "schedule", die)
    client.send(request("a", [3], Greedy(), max_tokens=9), request("b", [3], Greedy(), max_tokens=9))
    for name in ("a", "b"):
        error = client.last(name)
        assert isinstance(error, EngineClosedError)
        assert "the engine died: RuntimeError: the scheduler is broken" in str(error)
        assert isinstance(error.__cause__, RuntimeError)
        assert error.request_id == name
    with pytest.raises(EngineClosedError):
        client.send(request("c", [3], Greedy(), max_tokens=9))
    with pytest.raises(EngineClosedError):
        client.thread.stats()
    client.thread.close()
    assert caplog.messages == ["engine_died"]
    assert capsys.readouterr().out == "", "standard output is the program's that has the engine"


def test_all_of_a_submission_or_none() -> None:
    client = Client(toy_engine(num_blocks=50))
    for wrong in (
        [request("a", [3], Greedy(), max_tokens=2), request("a", [4], Greedy(), max_tokens=2)],
        [request("a", [3], Greedy(), max_tokens=2), request("big", [3], Beam(width=40), max_tokens=9)],
    ):
        with pytest.raises((InvalidRequestError, CapacityError)):
            client.send(*wrong)
    assert client.thread.stats().steps == 0
    client.send(request("a", [3], Greedy(), max_tokens=2))
    assert isinstance(client.last("a"), GroupFinished)
    client.thread.close()


def test_a_tree_is_carried_out_in_order_with_requests() -> None:
    client = Client(toy_engine())
    node, child = NodeRef("t", 0), NodeRef("t", 1)
    what = request("a", range(3, 15), Greedy(), max_tokens=3)
    client.send(dataclasses.replace(what, origin=node))
    client.last("a")
    client.thread.tree(Share(node, (child,), 11))
    again = dataclasses.replace(what, request_id="b", origin=child)
    client.thread.tree(Release("t", (0,)))
    client.send(again)
    event = client.last("b")
    assert isinstance(event, GroupFinished)
    assert event.usage.cached_tokens == 11
    client.thread.tree(Release("t"))
    assert client.thread.stats().used_blocks == 0
    client.thread.close()
    client.thread.tree(Release("t"))
    assert_idle(client.engine)


def test_close_while_others_ask() -> None:
    client = Client(toy_engine())
    answers: list[Any] = []

    def ask() -> None:
        try:
            while True:
                client.thread.stats()
        except EngineClosedError as error:
            answers.append(error)

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    client.thread.close()
    for asker in askers:
        asker.join(60)
        assert not asker.is_alive()
    assert len(answers) == 3


def test_a_forked_child_is_told_and_ends_nothing() -> None:
    client = Client(toy_engine())
    what = request("a", [3], Sample(n=2, seed=1), max_tokens=5)
    thread = client.thread
    told = in_a_forked_child(
        lambda: client.send(what),
        thread.stats,
        thread.ask_stats,
        lambda: thread.cancel(what),
        lambda: thread.tree(Release("tree")),
        thread.close,
    )
    assert told == "UUU---"
    client.send(what)
    assert isinstance(client.last("a"), GroupFinished)
    client.thread.close()
    assert_idle(client.engine)
