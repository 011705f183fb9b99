"""Who waits stands in a line; who has nothing to do with what waits passes."""

from __future__ import annotations

import queue
from concurrent.futures import Future

import pytest

from forkdecode.engine.line import Line

PATIENCE = 60.0


@pytest.fixture
def served() -> queue.SimpleQueue[str]:
    return queue.SimpleQueue()


def test_what_waits_for_nothing_is_served_at_once(served: queue.SimpleQueue[str]) -> None:
    line = Line(served.put)
    line.take("a", {"t"}, [])
    line.take("b", set(), [])
    assert [served.get_nowait(), served.get_nowait()] == ["a", "b"]
    line.close()
    line.close()


def test_others_pass_what_waits_and_its_own_kind_stays_behind(served: queue.SimpleQueue[str]) -> None:
    line, slow, slower = Line(served.put), Future[object](), Future[object]()
    line.take("slow", {"t"}, [slow])
    line.take("slower", {"u"}, [slower])
    line.take("behind", {"t"}, [])
    line.take("behind both", {"t", "u"}, [])
    line.take("passes", {"v"}, [])
    line.take("has no key", set(), [])
    assert [served.get_nowait(), served.get_nowait()] == ["passes", "has no key"]
    assert line.holds(lambda message: message == "behind both")
    assert not line.holds(lambda message: message == "passes")
    assert served.empty()
    slow.set_result(None)
    assert [served.get(timeout=PATIENCE) for _ in range(2)] == ["slow", "behind"]
    slower.set_exception(ValueError("it is done all the same"))
    assert [served.get(timeout=PATIENCE) for _ in range(2)] == ["slower", "behind both"]
    line.take("alone again", {"t"}, [])
    assert served.get_nowait() == "alone again"
    line.close()


def test_all_that_is_waited_for_must_be_done(served: queue.SimpleQueue[str]) -> None:
    line, parts = Line(served.put), [Future[object]() for _ in range(3)]
    line.take("whole", set(), parts)
    line.take("later", set(), [parts[0]])
    for part in parts[:2]:
        part.set_result(None)
    assert served.get(timeout=PATIENCE) == "later"
    assert served.empty()
    parts[2].cancel()
    assert served.get(timeout=PATIENCE) == "whole"
    line.close()


def test_what_waits_at_the_end_is_dropped(served: queue.SimpleQueue[str]) -> None:
    line, never = Line(served.put), Future[object]()
    line.take("never", set(), [never])
    line.close()
    never.set_result(None)
    assert served.empty()


def test_one_that_breaks_keeps_nobody_else(served: queue.SimpleQueue[str]) -> None:
    def serve(message: str) -> None:
        if message == "bad":
            raise RuntimeError("a fault")
        served.put(message)

    line, ready = Line(serve), Future[object]()
    line.take("bad", set(), [ready])
    line.take("good", set(), [ready])
    ready.set_result(None)
    assert served.get(timeout=PATIENCE) == "good"
    line.close()
