"""How events get from the engine's threads into the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from forkdecode import CancelledError
from forkdecode.errors import ForkdecodeError
from forkdecode.results import Delta, TokenLogprob
from forkdecode.scheduler.events import CandidateRecord, GroupEvent, GroupFinished
from forkdecode.server.backend import StepBell
from forkdecode.server.stream import Batch, Courier, Outbox, is_large_result
from tests.server.puppet import USAGE


class Loop:
    """An event loop that only counts how often it is woken."""

    def __init__(self) -> None:
        self.wakes: list[Callable[[], None]] = []
        self.problems: list[dict[str, Any]] = []

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.problems.append(context)

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self.wakes.append(call)

    def turn(self) -> None:
        wakes, self.wakes = self.wakes, []
        for call in wakes:
            call()


class Box:
    """The part of an Outbox that a Courier needs."""

    def __init__(self) -> None:
        self.events: list[GroupEvent | ForkdecodeError] = []

    def deliver(self, event: GroupEvent | ForkdecodeError) -> None:
        self.events.append(event)


def event(number: int) -> ForkdecodeError:
    return CancelledError(str(number))


def test_many_events_wake_the_loop_once() -> None:
    loop, boxes = Loop(), [Box(), Box()]
    courier = Courier(loop, None)  # type: ignore[arg-type]
    sent = [event(i) for i in range(10)]
    for i, one in enumerate(sent):
        courier.put(boxes[i % 2], one)  # type: ignore[arg-type]
    assert len(loop.wakes) == 1
    loop.turn()
    assert [box.events for box in boxes] == [sent[::2], sent[1::2]]
    courier.put(boxes[0], event(10))  # type: ignore[arg-type]
    assert len(loop.wakes) == 1


def test_a_step_comes_whole_where_there_is_a_bell() -> None:
    loop, box, bell = Loop(), Box(), StepBell()
    courier = Courier(loop, bell)  # type: ignore[arg-type]
    first, second, third = (event(i) for i in range(3))
    courier.put(box, first)  # type: ignore[arg-type]
    courier.put(box, second)  # type: ignore[arg-type]
    assert not loop.wakes
    bell.ring()
    courier.put(box, third)  # type: ignore[arg-type] - of the next step, while the loop has not turned yet
    assert len(loop.wakes) == 1
    loop.turn()
    assert box.events == [first, second]
    bell.ring()
    loop.turn()
    assert box.events == [first, second, third]
    bell.ring()
    assert not loop.wakes  # nothing to bring


def test_nothing_is_lost_between_threads() -> None:
    count, writers = 2000, 4
    boxes = [Box() for _ in range(writers)]
    sent: list[list[Any]] = [[event(i) for i in range(count)] for _ in range(writers)]

    async def main() -> None:
        courier = Courier(asyncio.get_running_loop())

        def write(number: int) -> None:
            for one in sent[number]:
                courier.put(boxes[number], one)  # type: ignore[arg-type]

        threads = [threading.Thread(target=write, args=(i,)) for i in range(writers)]
        for thread in threads:
            thread.start()
        await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
        await asyncio.sleep(0)  # the last wake-up is in the loop's list already

    asyncio.run(main())
    assert [box.events for box in boxes] == sent


def test_a_loop_that_has_gone_is_no_error() -> None:
    loop = asyncio.new_event_loop()
    courier, box = Courier(loop), Box()
    loop.close()
    courier.put(box, event(0))  # type: ignore[arg-type]
    assert not box.events


def test_one_that_cannot_take_its_letter_costs_the_others_none_of_theirs() -> None:
    class Broken(Box):
        def deliver(self, event: GroupEvent | ForkdecodeError) -> None:
            raise OSError("the disk is full")

    loop, broken, box = Loop(), Broken(), Box()
    courier = Courier(loop, None)  # type: ignore[arg-type]
    first, second = event(1), event(2)
    for receiver, letter in ((box, first), (broken, event(0)), (box, second)):
        courier.put(receiver, letter)  # type: ignore[arg-type]
    loop.turn()
    assert box.events == [first, second]
    assert [str(context["exception"]) for context in loop.problems] == ["the disk is full"]


def batch_of(tokens: int, top: int) -> Batch:
    """What a reader takes at once that was late by so many tokens."""

    async def take() -> Batch:
        pairs = tuple((i, -1.0) for i in range(top))
        delta = Delta("r", 0, (1,), "a", (TokenLogprob(1, -1.0, -1.0, pairs, pairs),))
        named: Any = SimpleNamespace(request_id="r")
        nothing: Any = None
        outbox = Outbox(named, lambda _: [delta], Courier(asyncio.get_running_loop()), nothing)
        for _ in range(tokens):
            outbox.deliver(nothing)
        return await outbox.take()

    return asyncio.run(take())


def test_what_a_slow_reader_left_is_not_converted_in_the_loop() -> None:
    assert not batch_of(1, 10).is_large
    large = batch_of(100, 100)
    assert large.is_large
    assert sum(len(event.logprobs or ()) for event in large.events if isinstance(event, Delta)) == 100


@pytest.mark.parametrize(
    ("tokens", "top", "is_large"),
    [(2000, None, False), (2001, None, True), (100, 10, False), (100, 50, True)],
)
def test_which_results_are_large(tokens: int, top: int | None, is_large: bool) -> None:
    pairs = tuple((i, -1.0) for i in range(top or 0))
    one = TokenLogprob(1, -1.0, -1.0, pairs, pairs)
    logprobs = None if top is None else (one,) * tokens
    record = CandidateRecord(0, (1,) * tokens, "length", -1.0, -1.0, -1.0, logprobs)
    assert is_large_result(GroupFinished("r", (record,), USAGE)) == is_large
