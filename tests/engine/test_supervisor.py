"""Processes that misbehave: nobody waits for ever, and the next one gets its chance."""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from forkdecode.engine.patience import Patience
from forkdecode.engine.port import Job
from forkdecode.engine.remote import EngineProcess
from forkdecode.engine.spawn import _popen
from forkdecode.errors import (
    CapacityError,
    EngineClosedError,
    InvalidRequestError,
    QueueFullError,
    UnavailableError,
)
from forkdecode.model.info import ModelInfo
from forkdecode.scheduler.request import DecodeRequest, Release
from forkdecode.step import ProcessorSpec
from forkdecode.types import Greedy, Options
from forkdecode.wire.messages import Hello
from tests.engine.engine_process import States, wait_until_gone
from tests.engine.forked import in_a_forked_child

NONE = np.empty(0, np.int64)


@pytest.fixture(autouse=True)
def puppets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forkdecode.engine.spawn.PROGRAM", "tests.engine.puppet_process")


def request(name: str = "r", **options: Any) -> DecodeRequest:
    return DecodeRequest(
        name, np.array([1, 2]), Greedy(), Options(**options), 0, ProcessorSpec(), NONE, NONE, None
    )


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("mute", "exit status 3"),
        ("garbage", "no frame"),
        ("other version", "another version"),
        ("wrong word", "AskStats is no beginning"),
    ],
)
def test_a_first_process_that_cannot_greet_is_an_error_of_start(model: str, says: str) -> None:
    engine = EngineProcess(model)
    with pytest.raises(UnavailableError, match=says):
        engine.start()
    assert engine.pid is None


def test_what_a_death_ends() -> None:
    engine, heard, flushed = EngineProcess("dies when asked", flush=lambda: flushed.append(1)), [], []
    engine.start()
    states = States(engine)
    states.wait_for("serving")
    first = engine.pid
    engine.submit([Job(request(str(i)), heard.append) for i in range(100)])
    states.wait_for("serving")
    assert [error.request_id for error in heard] == [str(i) for i in range(100)]
    assert all(type(error) is EngineClosedError and error.retry_after == 1.0 for error in heard)
    assert "exit status 4" in str(heard[0])
    assert flushed
    assert engine.pid != first
    answers = []
    try:
        engine.stats()
    except UnavailableError as error:
        answers.append(error)
    assert answers[0].retry_after == 1.0
    engine.close()
    engine.close()


def test_without_restart_it_stays_down() -> None:
    engine, heard = EngineProcess("dies when asked", restart=False), []
    engine.start()
    states = States(engine)
    engine.submit([Job(request(), heard.append)])
    states.wait_for("down")
    engine.close()
    assert heard[0].retry_after is None
    with pytest.raises(UnavailableError):
        engine.submit([Job(request(), heard.append)])


@pytest.mark.parametrize(
    ("model", "patience", "says"),
    [
        ("silent", Patience(silence=0.2), "it said nothing for 0.2 seconds"),
        ("beats, idle", Patience(silence=0.2), "it said nothing for 0.2 seconds"),
        ("beats", Patience(step=60), "a step took more than 60 seconds"),
    ],
)
def test_a_process_that_hangs_is_ended_like_one_that_dies(model: str, patience: Patience, says: str) -> None:
    engine, heard = EngineProcess(model, patience=patience), []
    states = States(engine)
    engine.start()
    first = engine.pid
    with contextlib.suppress(UnavailableError):  # it may be down already
        engine.submit([Job(request(), heard.append)])
    states.wait_for("down")
    states.wait_for("serving")
    engine.close()
    if first is not None:
        wait_until_gone(first)
    for error in heard:
        assert type(error) is EngineClosedError
        assert says in str(error)
        assert error.retry_after == 1.0


def test_a_process_that_hangs_before_its_first_word_is_an_error_of_start() -> None:
    engine = EngineProcess("stops before it greets", patience=Patience(silence=0.1, step=0.2))
    with pytest.raises(UnavailableError, match=r"said nothing for 0\.2 seconds"):
        engine.start()


def test_a_process_that_does_not_serve_yet_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forkdecode.engine.supervisor.END_GRACE", 1e6)
    monkeypatch.setattr("forkdecode.engine.supervisor.DEATH_GRACE", 0.01)
    spawned: SimpleQueue[int] = SimpleQueue()

    def spawn(descriptor: int) -> subprocess.Popen[bytes]:
        process = _popen(descriptor)
        spawned.put(process.pid)
        return process

    monkeypatch.setattr("forkdecode.engine.spawn._popen", spawn)
    engine = EngineProcess("stops before it greets")
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(engine.start)
        os.waitid(os.P_PID, spawned.get(), os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        engine.close()
        with pytest.raises(UnavailableError, match="before it had started"):
            started.result()


def test_a_process_is_given_time_by_the_words_that_it_says() -> None:
    """Beats of a step within its limit keep the process, and reach nobody."""
    engine = EngineProcess("beats, idle", patience=Patience(silence=60))
    engine.start()
    pid = engine.pid
    with pytest.raises(CapacityError):
        engine.submit([Job(request(max_tokens=5000), print)])
    assert engine.pid == pid
    engine.close()


@pytest.mark.parametrize("field", ["silence", "step"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "1", None, True])
def test_patience_is_a_finite_number_above_0(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"{field}: .*finite numbers above 0"):
        Patience(**{field: value})


def test_nonsense_from_a_process_ends_it() -> None:
    engine, heard = EngineProcess("answers nonsense", restart=False), []
    engine.start()
    states = States(engine)
    engine.submit([Job(request(), heard.append)])
    states.wait_for("down")
    engine.close()
    assert "Start is nothing that an engine says" in str(heard[0])


def test_another_model_does_not_take_the_place_of_the_first() -> None:
    engine = EngineProcess("changes")
    engine.start()
    pid = engine.pid
    states = States(engine)
    states.wait_for("serving")
    supervisor = engine._supervisor
    assert supervisor._child is not None
    supervisor._child._process.kill()
    for state in ("down", "starting", "down", "starting"):
        states.wait_for(state)
    assert engine.info.name == "model 0"
    with pytest.raises(UnavailableError):
        engine.submit([Job(request(), print)])
    engine.close()
    assert pid is not None


def test_requests_are_checked_against_the_process_that_serves() -> None:
    engine, heard = EngineProcess("finds less memory"), []
    engine.start()
    states = States(engine)
    states.wait_for("serving")
    assert engine.capacity.num_blocks == 50
    large = request("large", max_tokens=150)
    engine.submit([Job(large, heard.append)])
    assert engine._supervisor._child is not None
    engine._supervisor._child.kill()
    states.wait_for("serving")
    assert engine.capacity.num_blocks == 30
    with pytest.raises(CapacityError, match="the pool has 30;"):
        engine.submit([Job(large, heard.append)])
    engine.close()


@pytest.mark.parametrize("of", ["supervisor.Child", "spawn.Outbox", "supervisor.Watch"])
def test_a_process_for_which_there_is_no_thread_is_followed_by_another(
    monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    engine = EngineProcess("beats, idle")
    engine.start()
    states, killed = States(engine), engine._supervisor._child
    states.wait_for("serving")
    assert killed is not None
    tried: queue.SimpleQueue[None] = queue.SimpleQueue()

    def no_thread(*_: Any) -> Any:
        tried.put(None)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(f"forkdecode.engine.{of}", no_thread)
        killed.kill()
        for _ in range(2):
            tried.get(timeout=60)
    states.wait_for("serving")
    engine.close()
    with monkeypatch.context() as patch:
        patch.setattr(f"forkdecode.engine.{of}", no_thread)
        with pytest.raises(UnavailableError, match="can't start new thread"):
            EngineProcess("beats, idle").start()


def test_a_sink_that_raises_hurts_nobody_else() -> None:
    engine, heard = EngineProcess("dies when asked", restart=False), []

    def broken(event: object) -> None:
        raise RuntimeError("a sink of a caller")

    engine.start()
    engine.submit([Job(request("a"), broken), Job(request("b"), heard.append)])
    States(engine).wait_for("down")
    engine.close()
    assert heard[0].request_id == "b"


def test_capacity_is_checked_before_anything_is_sent() -> None:
    engine = EngineProcess("dies when asked")
    engine.start()
    with pytest.raises(CapacityError) as error:
        engine.submit([Job(request("big", max_tokens=5000), print)])
    assert (error.value.request_id, error.value.field) == ("big", "max_tokens")
    engine.close()
    with pytest.raises(EngineClosedError):
        engine.submit([Job(request(), print)])


def test_a_dropped_engine_ends_its_process() -> None:
    engine = EngineProcess("silent")
    engine.start()
    pid = engine.pid
    assert pid is not None
    del engine
    gc.collect()
    wait_until_gone(pid)


def test_a_dropped_engine_is_ended_by_whoever_collects_it() -> None:
    """One of its own threads, maybe, within anything that it does."""
    supervisor = EngineProcess("silent")._supervisor

    def collect() -> None:
        with supervisor._lock:
            supervisor.hang_up()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for a lock that it holds itself"
    with pytest.raises(EngineClosedError):
        supervisor.submit([Job(request(), print)])


def test_a_fault_of_ours_while_a_process_is_heard_is_told_like_its_death(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, heard = EngineProcess("answers nonsense", restart=False), []
    engine.start()
    states = States(engine)

    def choke(message: object) -> None:
        raise RuntimeError("broken")

    def deaf(state: str) -> None:
        raise RuntimeError("a listener of a caller")

    engine.on_state(lambda state: deaf(state) if state == "down" else None)
    monkeypatch.setattr(engine._supervisor, "_hear", choke)
    engine.submit([Job(request(), heard.append)])
    states.wait_for("down")
    engine.close()
    assert type(heard[0]) is EngineClosedError
    assert "internal error: RuntimeError" in str(heard[0])


def test_no_more_is_sent_to_a_process_that_is_behind() -> None:
    supervisor = EngineProcess("silent")._supervisor
    info = ModelInfo("model", 100, 100, (), ((1, 8),), (None,), "float32", 1)
    supervisor.started.set_result(Hello(info, None, 50, 4, 64, 0))
    behind: Any = SimpleNamespace(has_room=lambda size: False)
    supervisor._child, supervisor._serving, supervisor._closed = behind, True, False
    with pytest.raises(QueueFullError) as error:
        supervisor.submit([Job(request(), print)])
    assert error.value.retry_after
    supervisor._child = None


def test_of_what_no_frame_holds_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = EngineProcess("beats, idle")
    engine.start()
    with monkeypatch.context() as patch:
        patch.setattr("forkdecode.wire.frames.MAX_FRAME", 2**11)
        with pytest.raises(CapacityError) as error:
            engine.submit([Job(request("a", stop=("x" * 3000,)), print)])
        assert (error.value.field, error.value.limit) == ("stop", "at most 2,048 bytes at a time")
        assert error.value.request_id == "a"
    engine.submit([Job(request("a"), print)])  # its id is free
    engine.close()


def test_an_engine_that_was_never_started() -> None:
    engine = EngineProcess("silent")
    for ask in (engine.stats, lambda: engine.info, lambda: engine.submit([Job(request(), print)])):
        with pytest.raises(UnavailableError):
            ask()
    engine.close()
    began = time.monotonic()
    with pytest.raises(UnavailableError):
        engine.start()
    assert time.monotonic() - began < 60


def test_a_forked_child_is_told_and_ends_nothing() -> None:
    """Its connection to the process is the parent's."""
    engine, heard = EngineProcess("dies when asked"), []
    engine.start()
    states, pid = States(engine), engine.pid
    states.wait_for("serving")
    told = in_a_forked_child(
        lambda: engine.submit([Job(request(), heard.append)]),
        engine.stats,
        engine.start,
        lambda: engine.cancel(request()),
        lambda: engine.tree(Release("tree")),
        engine.close,
    )
    assert told == "UUU---"
    assert pid == engine.pid
    engine.submit([Job(request(), heard.append)])  # it is there still, and is asked
    states.wait_for("down")
    engine.close()
    assert "exit status 4" in str(heard[0])
