"""What a step reports is told while a device computes the next one: the same, in the same order."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from forkdecode.engine.core import Engine
from forkdecode.engine.thread import EngineThread, Job
from forkdecode.errors import CancelledError, EngineClosedError, GroupFailedError
from forkdecode.scheduler.events import BeamStep, GroupFailed, GroupFinished, GroupStarted, TokensAppended
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.types import Beam, Greedy, Sample, Strategy
from tests.engine.toy_device import ToyDevice, device_engine
from tests.scheduler.engines import assert_idle, request, toy_engine


class Heard:
    """Who listens to an engine's thread: each request's events, and that they came."""

    def __init__(self, engine: Engine, device: ToyDevice | None = None) -> None:
        self.thread = EngineThread(engine)
        self.device = device
        self.events: dict[str, list[Any]] = defaultdict(list)
        self.ended: dict[str, threading.Event] = defaultdict(threading.Event)

    def send(self, *requests: DecodeRequest) -> None:
        self.thread.submit([Job(r, self.sink(r.request_id)) for r in requests])

    def sink(self, name: str) -> Callable[[Any], None]:
        def take(event: Any) -> None:
            self.events[name].append(event)
            if self.device is not None:
                self.device.log.append(f"tell {name} {type(event).__name__}")
            if isinstance(event, GroupFinished | GroupFailed | Exception):
                self.ended[name].set()

        return take

    def wait(self, *names: str) -> None:
        for name in names:
            assert self.ended[name].wait(60), name


def asked() -> list[DecodeRequest]:
    return [
        streamed("greedy", Greedy(), 12),
        streamed("samples", Sample(n=3, seed=1), 12, eos=[9, 4]),
        streamed("beam", Beam(width=3), 12, eos=[2]),
        streamed("other beam", Beam(width=4), 12),
        request("whole", [1], Beam(width=2), max_tokens=7),
    ]


def streamed(name: str, strategy: Strategy, max_tokens: int, eos: Sequence[int] = ()) -> DecodeRequest:
    return replace(request(name, list(name.encode()), strategy, eos, max_tokens=max_tokens), stream=True)


def told(events: list[Any]) -> list[str]:
    """All but the times."""
    return [repr(e).split("usage=")[0] for e in events]


def test_what_is_told_is_the_same_in_the_same_order() -> None:
    device_side, _ = device_engine()
    both = [Heard(toy_engine()), Heard(device_side)]
    for heard in both:
        heard.send(*asked())
        heard.wait(*(r.request_id for r in asked()))
        heard.thread.close()
    plain, overlapped = both
    assert any(isinstance(e, BeamStep) for e in overlapped.events["other beam"])
    for name in plain.events:
        assert told(overlapped.events[name]) == told(plain.events[name]), name
    assert_idle(device_side)


def test_a_step_is_told_between_the_next_one_s_launch_and_answer() -> None:
    engine, device = device_engine()
    heard = Heard(engine, device)
    heard.send(streamed("a", Sample(n=2, seed=1), 4))
    heard.wait("a")
    heard.thread.close()
    at = [i for i, what in enumerate(device.log) if what == "tell a TokensAppended"]
    assert len(at) == 4
    for place in at[:-1]:
        launched, answered = (
            sum(what.startswith(part) for what in device.log[:place]) for part in ("launch", "answer")
        )
        assert launched > answered
    assert device.log[-1] == "tell a GroupFinished"


def test_beams_that_go_on_together_tell_while_the_device_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    from forkdecode.scheduler.beam_stream import BeamStream

    engine, device = device_engine()
    events = BeamStream.events

    def seen(*args: Any) -> Any:
        device.log.append("compare")
        return events(*args)

    monkeypatch.setattr(BeamStream, "events", seen)
    heard = Heard(engine, device)
    heard.send(*(streamed(f"b{i}", Beam(width=3), 8) for i in range(3)))
    heard.wait("b0", "b1", "b2")
    heard.thread.close()
    launched = device.log.index("launch 4")
    assert device.log[launched : device.log.index("answer 4")].count("compare") == 3


@pytest.mark.parametrize("part", ["launch", "answer"])
def test_a_step_that_fails_takes_nothing_that_was_told_before(part: str) -> None:
    engine, _ = device_engine(fails={4: part})
    heard = Heard(engine)
    heard.send(streamed("short", Greedy(), 3))
    heard.send(streamed("long", Beam(width=2), 9))
    heard.wait("short", "long")
    last = heard.events["short"][-1], heard.events["long"][-1]
    assert isinstance(last[0], GroupFinished)
    assert isinstance(last[1], GroupFailed)
    assert isinstance(last[1].error, GroupFailedError)
    assert f"no {part}" in str(last[1].error)
    heard.send(request("after", [5], Greedy(), max_tokens=3))
    heard.wait("after")
    assert isinstance(heard.events["after"][-1], GroupFinished)
    heard.thread.close()
    assert_idle(engine)


def test_what_has_finished_is_told_before_the_engine_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = device_engine()
    ahead = engine.scheduler.schedule_ahead

    def dies_after_one() -> Any:
        if engine.scheduler.stats().finished_groups:
            raise RuntimeError("the scheduler is broken")
        return ahead()

    monkeypatch.setattr(engine.scheduler, "schedule_ahead", dies_after_one)
    heard = Heard(engine)
    heard.send(request("done", [3], Greedy(), max_tokens=2), request("lost", [4], Greedy(), max_tokens=9))
    heard.wait("done", "lost")
    assert isinstance(heard.events["done"][-1], GroupFinished)
    assert isinstance(heard.events["lost"][-1], EngineClosedError)


def test_a_cancel_comes_after_what_was_decoded_before_it() -> None:
    engine, device = device_engine()
    heard = Heard(engine)
    what = streamed("a", Sample(n=2, seed=1), 3000)
    computes, goes_on = threading.Event(), threading.Event()

    def wait() -> None:
        computes.set()
        assert goes_on.wait(60)

    device.waits = wait
    heard.send(what)
    assert computes.wait(60)
    heard.thread.cancel(what)  # of a first step that nobody has been told of
    goes_on.set()
    heard.wait("a")
    started, first, last = heard.events["a"]
    assert isinstance(started, GroupStarted)
    assert isinstance(first, TokensAppended)
    assert isinstance(last.error, CancelledError)
    heard.thread.close()
    assert_idle(engine)


def test_who_is_slow_to_be_told_makes_no_long_step() -> None:
    engine, _ = device_engine()
    heard = Heard(engine)
    seconds: list[float] = []

    def take(event: Any) -> None:
        seconds.append(heard.thread.step_seconds())
        if isinstance(event, GroupFinished):
            heard.ended["a"].set()

    heard.thread.submit([Job(streamed("a", Greedy(), 4), take)])
    heard.wait("a")
    heard.thread.close()
    assert len(seconds) > 4
    assert set(seconds) == {0.0}
