"""Events wait merged, nothing is lost or late, and not without bound."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkdecode.errors import CancelledError, CapacityError
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.server import tree_feed, tree_host
from forkdecode.server.auth import ANYBODY
from forkdecode.server.stream import Courier
from forkdecode.server.tree_feed import TreeFeed
from forkdecode.server.tree_host import HostedTree
from forkdecode.tree.effort import Effort
from forkdecode.tree_types import (
    Accepted,
    Done,
    Fork,
    NodeDelta,
    NodeInfo,
    NodeStopped,
    Refused,
    TreeEvent,
    TreeLimits,
    TreeOpened,
)
from tests.rpc import records


@st.composite
def streams(draw: st.DrawFn) -> list[TreeEvent]:
    """What a session may tell: nodes grow, and stop once."""
    events: list[TreeEvent] = []
    growing = [0, 1, 2]
    for _ in range(draw(st.integers(0, 20))):
        kind = draw(st.integers(0, 3))
        if kind == 0 and growing:
            node = growing.pop(draw(st.integers(0, len(growing) - 1)))
            events.append(NodeStopped(node, "stopped", "length", 0.0))
        elif kind == 1:
            events.append(Done(draw(st.integers(0, 9))))
        elif growing:
            tokens = tuple(draw(st.lists(st.integers(0, 9), max_size=2)))
            logprobs = tuple(draw(records.token_logprobs) for _ in tokens)
            events.append(NodeDelta(draw(st.sampled_from(growing)), tokens, str(tokens), logprobs or None))
    return events


def grown(events: list[TreeEvent]) -> dict[int, Any]:
    """Each node's tokens, text and log-probabilities; raises if one grows after its end."""
    found: dict[int, Any] = {}
    stopped = set()
    for event in events:
        if isinstance(event, NodeStopped):
            stopped.add(event.node)
        elif isinstance(event, NodeDelta):
            assert event.node not in stopped
            old = found.get(event.node, ((), "", ()))
            found[event.node] = (
                old[0] + event.token_ids,
                old[1] + event.text,
                old[2] + (event.logprobs or ()),
            )
    return found


def others(events: list[TreeEvent]) -> list[TreeEvent]:
    return [event for event in events if not isinstance(event, NodeDelta)]


@given(streams(), st.lists(st.booleans(), min_size=20, max_size=20))
def test_merging_loses_nothing_and_keeps_the_order(events: list[TreeEvent], takes: list[bool]) -> None:
    async def run() -> list[TreeEvent]:
        feed, found = TreeFeed("t"), []
        for event, take in zip(events, takes, strict=False):
            feed.add([event])
            if take:
                taken = await feed.take() or []
                deltas = [e.node for e in taken if isinstance(e, NodeDelta)]
                assert len(set(deltas)) == len(deltas)
                found += taken
        feed.end()
        while (taken_last := await feed.take()) is not None:
            found += taken_last
        return found

    found = asyncio.run(run())
    assert others(found) == others(events)
    assert grown(found) == grown(events)


def test_too_much_ends_it_after_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_feed, "MAX_PENDING_BYTES", 10_000)

    async def run() -> None:
        feed = TreeFeed("tree-1")
        for i in range(1000):
            feed.add([NodeDelta(0, (i,), "x")])
        taken = await feed.take()
        assert taken is not None
        [delta] = taken
        assert isinstance(delta, NodeDelta)
        assert 100 < len(delta.token_ids) < 200
        with pytest.raises(CapacityError, match="the reader is too slow") as caught:
            await feed.take()
        assert caught.value.request_id == "tree-1"

    asyncio.run(run())


def test_a_big_session_is_told_whole_when_it_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_feed, "MAX_PENDING_BYTES", 10_000)

    async def run() -> None:
        feed = TreeFeed("t")
        infos = tuple(NodeInfo(i, None, 0, "stopped", 0, (1,) * 50, "", i) for i in range(100))
        feed.add([TreeOpened("t", "m", 0, infos), Done(1)])
        assert len(await feed.take() or ()) == 2
        for number in range(100):
            feed.add([Done(number)])
        assert await feed.take()
        with pytest.raises(CapacityError, match="the reader is too slow"):
            await feed.take()

    asyncio.run(run())


def test_it_ends_once_and_wakes_who_waits() -> None:
    async def run() -> None:
        feed = TreeFeed("t")
        waiting = asyncio.ensure_future(feed.take())
        await asyncio.sleep(0)
        feed.end(CancelledError("first"))
        feed.end()
        feed.add([Done(1)])
        with pytest.raises(CancelledError, match="first"):
            await waiting

    asyncio.run(run())


def test_commands_are_known_until_they_are_answered() -> None:
    async def run() -> None:
        feed = TreeFeed("t")
        feed.asked = {i: pb.TreeCommand(command_id=i) for i in range(3)}
        feed.add([Accepted(0), Refused(1, CancelledError("no")), Done(0)])
        assert list(feed.asked) == [2]
        await feed.take()
        assert feed.refused == {1: pb.TreeCommand(command_id=1)}
        feed.add([Done(5)])
        await feed.take()
        assert feed.refused == {}

    asyncio.run(run())


def test_a_refusal_is_of_its_own_command_whatever_else_has_its_id() -> None:
    first, second, third = (
        pb.TreeCommand(command_id=1, fork_node=pb.ForkNode(node=node)) for node in range(3)
    )

    async def run() -> None:
        feed = TreeFeed("t")
        feed.asked[1] = first
        error = CancelledError("no")
        feed.refuse(second, error)
        feed.add([NodeDelta(3, (5,), "a"), NodeDelta(3, (5,), "a")])
        feed.refuse(third, error)
        feed.add([Refused(1, error)])
        assert len(await feed.take() or ()) == 4
        assert feed.refused == {0: second, 2: third, 3: first}

    asyncio.run(run())


class Hand(Executor):
    """A worker that does what it was given when told to."""

    def __init__(self) -> None:
        self.given: list[tuple[Future[Any], Any, Any]] = []

    def submit(self, fn: Any, /, *args: Any, **more: Any) -> Any:
        future: Future[Any] = Future()
        self.given.append((future, fn, args))
        return future

    async def work(self) -> None:
        future, fn, args = self.given.pop(0)
        try:
            future.set_result(fn(*args))
        except Exception as error:
            future.set_exception(error)
        for _ in range(3):
            await asyncio.sleep(0)


class Told:
    """A session that writes down what is done with it."""

    name = "t"
    is_running = False

    def __init__(self, emit: Any) -> None:
        self.emit = emit
        self.done: list[Any] = []
        self.breaks = False

    def snapshot(self) -> TreeOpened:
        return TreeOpened("t", "m", 0, ())

    def snapshot_effort(self) -> Effort:
        return Effort(0)

    def effort(self, command: Any, size: int, enough: int) -> Effort:
        return Effort(size)

    def command(self, command: Any) -> None:
        self.done.append(command.n)
        self.emit(Accepted(command.command_id))
        self.emit(Done(command.command_id))

    def take(self, item: Any) -> None:
        if self.breaks:
            raise RuntimeError("the secret of the house")
        self.done.append(item)
        self.emit(NodeDelta(0, (1,), item))

    def close(self) -> None:
        self.done.append("closed")


def hands(hand: Hand) -> Any:
    """Workers that are all one."""
    return SimpleNamespace(of=lambda size, waits=False: hand)


class Hosted:
    """A HostedTree whose worker is a test's."""

    def __init__(self) -> None:
        self.hand = Hand()
        courier = Courier(asyncio.get_running_loop())
        self.host = HostedTree(
            ANYBODY, TreeLimits(), courier, hands(self.hand), lambda: 0.0, lambda host: None
        )
        self.session: Any = None
        self.feed = TreeFeed("t")

    async def open(self) -> None:
        def make(emit: Any, post: Any) -> Any:
            self.session = Told(emit)
            return self.session

        opening = asyncio.ensure_future(self.host.open(make, 0))
        await asyncio.sleep(0)
        await self.hand.work()
        await opening
        self.host.attach(self.feed, lambda opened: opened)
        await self.hand.work()

    def deliver(self, item: str) -> None:
        found: Any = item
        self.host.deliver(found)


def hosted(test: Any) -> None:
    async def run() -> None:
        one = Hosted()
        await one.open()
        await test(one)

    asyncio.run(run())


def test_one_thing_at_a_time_is_done_with_a_session() -> None:
    async def test(one: Hosted) -> None:
        one.host.command(one.feed, Fork(1, 0, 2))
        one.host.command(one.feed, Fork(2, 0, 3))
        one.deliver("a")
        assert one.session.done == []
        await one.hand.work()
        assert one.session.done == [2, "a"]
        one.deliver("b")
        await one.hand.work()
        assert one.session.done == [2, "a", 3, "b"]
        one.deliver("c")
        told = await one.feed.take() or []
        kinds = [type(event).__name__ for event in told]
        assert kinds == ["TreeOpened", "Accepted", "Done", "NodeDelta", "Accepted", "Done"]
        assert [event.command_id for event in told if isinstance(event, Done)] == [1, 2]
        assert told[3] == NodeDelta(0, (1, 1, 1), "abc")

    hosted(test)


def test_who_ends_it_waits_for_the_worker() -> None:
    async def test(one: Hosted) -> None:
        one.host.command(one.feed, Fork(1, 0, 2))
        one.host.command(one.feed, Fork(2, 0, 3))
        one.host.end(CancelledError("over"))
        one.deliver("a")
        assert one.session.done == []
        await one.hand.work()
        assert one.session.done == [2, "closed"]
        assert not one.hand.given
        await one.feed.take()
        with pytest.raises(CancelledError, match="over"):
            await one.feed.take()

    hosted(test)


def test_no_more_is_read_while_many_commands_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_host, "MAX_WAITING", 4)

    async def test(one: Hosted) -> None:
        reading = asyncio.ensure_future(flood(one, 100))
        for carried_out in range(12):
            await asyncio.sleep(0)
            assert len(one.session.done) == carried_out
            assert reading.get_name() == str(carried_out + 5)  # one is with the worker
            await one.hand.work()
        one.host.end()
        await reading

    async def flood(one: Hosted, count: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        for number in range(count):
            one.host.command(one.feed, Fork(number, 0, 1))
            task.set_name(str(number + 1))
            await one.host.room()

    async def big(one: Hosted) -> None:
        for number, size in enumerate((3 * 2**20, 2**20, 3 * 2**20)):
            one.host.command(one.feed, Fork(number, 0, 1), size)
        waiting = asyncio.ensure_future(one.host.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        await one.hand.work()
        assert await waiting is None

    hosted(test)
    hosted(big)


def test_a_session_that_breaks_ends_alone() -> None:
    async def test(one: Hosted) -> None:
        one.session.breaks = True
        one.deliver("a")
        assert one.host.ended
        await one.feed.take()
        with pytest.raises(RuntimeError):
            await one.feed.take()

    hosted(test)
