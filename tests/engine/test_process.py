"""The engine's side of the socket, on the toy model: a step is a frame, and every end is told."""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forkdecode.constraints.catalogues import Catalogues
from forkdecode.engine.core import Engine
from forkdecode.engine.desk import Desk
from forkdecode.engine.outgoing import Outgoing
from forkdecode.engine.process import tokenizer_folder
from forkdecode.engine.submission import submits
from forkdecode.engine.thread import EngineThread
from forkdecode.engine.whole import Maker
from forkdecode.errors import CancelledError, CapacityError, EngineClosedError, GroupFailedError
from forkdecode.scheduler.events import GroupFailed, GroupFinished, TokensAppended
from forkdecode.scheduler.request import DecodeRequest, NodeRef, Release, Share
from forkdecode.types import Greedy, Sample
from forkdecode.wire.frames import FrameReader, Outbox
from forkdecode.wire.messages import AskStats, Cancel, Events, Refused, Stats, Tree
from forkdecode.wire.records import CODEC
from tests.scheduler.engines import assert_idle, request, toy_engine
from tests.tiny_model import byte_tokenizer, save_tiny_llama

NO_TOKENIZER: Any = SimpleNamespace(tokenizer=None, info=SimpleNamespace(vocab_size=32, eos_ids=()))


class FrontEnd:
    """Speaks to an engine that runs in this process."""

    def __init__(self, engine: Engine, maker: Maker | None = None) -> None:
        ours, theirs = socket.socketpair()
        self.engine, self._socks = engine, (ours, theirs)
        self._out, self._in = Outbox(ours, CODEC.schema, 2**30), FrameReader(ours, CODEC.schema)
        self._back = Outbox(theirs, CODEC.schema, 2**30)
        outgoing = Outgoing(self._back)
        self.thread = EngineThread(engine, outgoing.flush)
        self._read = FrameReader(theirs, CODEC.schema)
        desk = Desk(self.thread, outgoing, maker or Maker(NO_TOKENIZER, Catalogues(32, ())))
        self._desk = threading.Thread(target=desk.run, args=(self._read,))
        self._desk.start()

    def send(self, message: object) -> None:
        self._out.put(CODEC.encode(message))

    def submit(self, number: int, requests: Sequence[DecodeRequest]) -> None:
        for message in submits(requests, number, 2**30):
            self._out.put(message)

    def receive(self) -> Any:
        data = self._in.read()
        return None if data is None else CODEC.decode(data)

    def close(self) -> None:
        self._socks[0].shutdown(socket.SHUT_WR)
        self.thread.wait()
        self._desk.join()
        for end in (self._out, self._back):
            end.close(60)
        for file in (self._in, self._read, *self._socks):
            file.close()


@pytest.fixture
def front_end() -> Iterator[FrontEnd]:
    front_end = FrontEnd(toy_engine())
    yield front_end
    front_end.close()
    assert_idle(front_end.engine)


def streamed(what: DecodeRequest) -> DecodeRequest:
    return dataclasses.replace(what, stream=True)


def until_ends(front_end: FrontEnd, count: int) -> list[Events]:
    """Frames until `count` requests have ended."""
    frames = []
    while count:
        frames.append(front_end.receive())
        count -= sum(isinstance(e, (GroupFinished, GroupFailed, Refused)) for e in frames[-1].events)
    return frames


def test_a_step_is_one_frame(front_end: FrontEnd) -> None:
    requests = [streamed(request(f"r{i}", [i + 3], Sample(n=4, seed=i), max_tokens=30)) for i in range(16)]
    front_end.submit(1, tuple(requests))
    frames = until_ends(front_end, 16)
    appended = [[e for e in frame.events if isinstance(e, TokensAppended)] for frame in frames]
    # Each of the 30 steps of the 16 requests; the last may be admitted a step later than the first.
    assert 30 <= len(list(filter(None, appended))) <= 32
    assert sum(map(len, appended)) == 16 * 30
    assert front_end.engine.stats().steps <= 32


def test_a_result_too_long_for_a_frame_ends_its_own_request_alone(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkdecode.wire.frames.MAX_FRAME", 2**11)
    big = request("big", [3], Sample(n=32, seed=1), max_tokens=80)  # 2,560 bytes of tokens
    front_end.submit(1, (big, request("other", [4], Greedy(), max_tokens=3000)))
    (refused,) = until_ends(front_end, 1)[-1].events
    assert isinstance(refused, Refused)
    assert (refused.request_id, type(refused.error)) == ("big", CapacityError)
    assert "at most 2,048" in str(refused.error)
    front_end.send(Cancel(2))
    last = until_ends(front_end, 1)[-1].events[-1]
    assert last.request_id == "other"
    assert isinstance(last, GroupFailed)


def test_an_event_that_cannot_cross_ends_its_own_request_alone(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not its last one: nothing of it runs on."""
    monkeypatch.setattr("forkdecode.wire.frames.MAX_FRAME", 2**10)
    many = streamed(request("many", [3], Sample(n=128, seed=1), max_tokens=100))  # 2.5 KiB a step
    front_end.submit(1, (many, request("other", [4], Greedy(), max_tokens=20)))
    last = {event.request_id: event for frame in until_ends(front_end, 2) for event in frame.events}
    assert isinstance(last["many"], Refused)
    assert isinstance(last["other"], GroupFinished)
    front_end.send(AskStats(1))
    answer = front_end.receive()
    assert isinstance(answer, Stats)  # and not a second end of it
    assert (answer.stats.running_groups, answer.stats.failed_groups) == (0, 1)


def test_what_a_cancelled_request_had_does_not_cross(front_end: FrontEnd) -> None:
    what = streamed(request("r", [3], Sample(n=4, seed=1), max_tokens=3000, logprobs=9))
    front_end.submit(1, (what,))
    while not any(isinstance(event, TokensAppended) for event in front_end.receive().events):
        pass
    front_end.send(Cancel(1))
    last = until_ends(front_end, 1)[-1].events[-1]
    assert isinstance(last, GroupFailed)
    assert not last.candidates
    assert last.usage.generated_tokens


def test_numbers_name_requests(front_end: FrontEnd) -> None:
    front_end.submit(7, (request("a", [3], Greedy(), max_tokens=1),))
    until_ends(front_end, 1)
    front_end.submit(8, (request("a", [3], Greedy(), max_tokens=3000),))
    front_end.send(Cancel(7))
    front_end.send(Cancel(99))
    front_end.send(AskStats(5))
    answer = front_end.receive()
    assert isinstance(answer, Stats)
    stats = answer.stats
    assert (answer.number, stats.failed_groups, stats.running_groups + stats.waiting_groups) == (5, 0, 1)
    front_end.send(Cancel(8))
    (event,) = until_ends(front_end, 1)[-1].events
    assert isinstance(event, GroupFailed)
    assert isinstance(event.error, CancelledError)


def test_what_cannot_be_submitted_is_refused_by_name(front_end: FrontEnd) -> None:
    front_end.submit(1, tuple(request(n, [3], Greedy(), max_tokens=9) for n in ("a", "a", "b")))
    events = until_ends(front_end, 3)[-1].events
    assert [event.request_id for event in events] == ["a", "a", "b"]
    assert all(isinstance(event, Refused) and event.error.field == "request_id" for event in events)
    assert [event.error.request_id for event in events] == ["a", "a", "b"]


class SlowMaker(Maker):
    """Has requests whose id begins with "slow" wait until `ready`; and "bad" ones break."""

    def __init__(self) -> None:
        super().__init__(NO_TOKENIZER, Catalogues(32, ()))
        self.ready: Future[None] = Future()

    def begin(self, sent: DecodeRequest) -> Future[Any] | None:
        return self.ready if sent.request_id.startswith("slow") else None

    def whole(self, sent: DecodeRequest) -> DecodeRequest:
        if sent.request_id.startswith("bad"):
            raise RuntimeError("a fault of ours")
        return super().whole(sent)


def test_nobody_waits_for_another_s_grammar() -> None:
    maker = SlowMaker()
    front_end = FrontEnd(toy_engine(), maker)
    node, other = NodeRef("tree", 1), NodeRef("other", 1)
    slow = dataclasses.replace(request("slow", [3, 4, 5, 6, 7], Greedy(), max_tokens=2), origin=node)
    front_end.submit(1, (slow,))
    front_end.submit(2, (request("slow and cancelled", [3], Greedy(), max_tokens=2000),))
    front_end.send(Tree(Share(node, (NodeRef("tree", 2),), 4)))
    front_end.send(Tree(Release("tree", (1,))))
    fast = dataclasses.replace(request("fast", [3], Greedy(), max_tokens=2), origin=other)
    front_end.submit(3, (fast,))
    assert until_ends(front_end, 1)[-1].events[-1].request_id == "fast"
    behind = dataclasses.replace(request("behind", [3, 4, 5, 6, 7], Greedy(), max_tokens=2), origin=node)
    front_end.submit(4, (behind,))
    front_end.send(Cancel(2))
    front_end.send(AskStats(1))
    stats = front_end.receive()
    assert isinstance(stats, Stats)
    assert (stats.stats.finished_groups, stats.stats.running_groups, stats.stats.waiting_groups) == (1, 0, 0)
    maker.ready.set_result(None)
    last = {e.request_id: e for frame in until_ends(front_end, 3) for e in frame.events}
    assert isinstance(last["slow"], GroupFinished)
    assert isinstance(last["behind"], GroupFinished)
    cancelled = last["slow and cancelled"]
    assert isinstance(cancelled, GroupFailed)
    assert isinstance(cancelled.error, CancelledError)
    front_end.send(Tree(Release("tree")))
    front_end.send(Tree(Release("other")))
    front_end.close()
    assert_idle(front_end.engine)


def test_a_request_that_cannot_be_made_is_answered_and_the_engine_goes_on() -> None:
    front_end = FrontEnd(toy_engine(), SlowMaker())
    front_end.submit(1, (request("bad", [3], Greedy(), max_tokens=2),))
    (event,) = until_ends(front_end, 1)[-1].events
    assert isinstance(event, Refused)
    assert isinstance(event.error, GroupFailedError)
    front_end.submit(2, (request("good", [3], Greedy(), max_tokens=2),))
    assert isinstance(until_ends(front_end, 1)[-1].events[-1], GroupFinished)
    front_end.close()


def test_an_engine_that_dies_tells_everybody_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    front_end = FrontEnd(toy_engine())

    def die() -> None:
        raise RuntimeError("the scheduler is broken")

    monkeypatch.setattr(front_end.engine.scheduler, "schedule", die)
    front_end.submit(1, tuple(request(n, [3], Greedy(), max_tokens=9) for n in "abc"))
    events = [event for frame in until_ends(front_end, 3) for event in frame.events]
    assert {event.request_id for event in events} == set("abc")
    for event in events:
        assert isinstance(event, Refused)
        assert isinstance(event.error, EngineClosedError)
        assert "the scheduler is broken" in str(event.error)
    front_end.thread.wait()
    front_end.send(AskStats(1))
    front_end.close()


@pytest.mark.parametrize("message", [Events(()), 3, None])
def test_nonsense_ends_the_engine(message: object) -> None:
    front_end = FrontEnd(toy_engine())
    front_end.submit(1, (request("a", [3], Greedy(), max_tokens=3000),))
    front_end.send(message)
    event = until_ends(front_end, 1)[-1].events[-1]
    assert isinstance(event, Refused)
    assert isinstance(event.error, EngineClosedError)
    front_end.close()


def test_where_the_front_end_finds_the_tokenizer(tmp_path: Path) -> None:
    loaded: Any = SimpleNamespace(tokenizer=byte_tokenizer())
    folder = save_tiny_llama(tmp_path / "model")
    assert tokenizer_folder(str(folder), loaded, tmp_path / "scratch") == str(folder)
    gguf = tmp_path / "model.gguf"
    gguf.touch()
    for model in (str(gguf), "nobody/has-this-one"):
        found = tokenizer_folder(model, loaded, tmp_path / "scratch")
        assert found == str(tmp_path / "scratch")
        assert Path(found, "tokenizer.json").is_file()
    assert tokenizer_folder(str(folder), NO_TOKENIZER, tmp_path) is None
