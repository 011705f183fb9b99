"""An engine process gives what the engine's thread gives, and whatever happens to it, everybody is told."""

from __future__ import annotations

import dataclasses
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forkdecode.calls.tree import Tree
from forkdecode.constraint_types import Regex
from forkdecode.engine.patience import Patience
from forkdecode.engine.port import EnginePort
from forkdecode.engine.remote import EngineProcess
from forkdecode.engine.start import start_engine
from forkdecode.errors import (
    CancelledError,
    CapacityError,
    EngineClosedError,
    InvalidRequestError,
    ModelLoadError,
    QueueFullError,
    UnavailableError,
)
from forkdecode.model.loader import load
from forkdecode.requests.prepare import Prepared, RequestMaker
from forkdecode.results import DecodeResult, Finished
from forkdecode.scheduler.events import GroupFailed, GroupFinished
from forkdecode.scheduler.request import NodeRef, Release, Share
from forkdecode.tree.local import LocalLink
from forkdecode.tree.running import Emit
from forkdecode.tree.session import Post, TreeSession
from forkdecode.tree_types import OpenTree
from forkdecode.types import (
    Beam,
    BestOf,
    Contrastive,
    DiverseBeam,
    Greedy,
    LengthNormalised,
    Sample,
    Strategy,
)
from forkdecode.wire.records import CODEC
from tests.engine.engine_process import CONFIG, Client, States, started, wait_until_gone
from tests.tiny_model import save_tiny_llama

STRATEGIES: dict[str, Strategy] = {
    "greedy": Greedy(),
    "sample": Sample(n=3, seed=11, temperature=0.8),
    "best_of": BestOf(best_of=4, n=3, seed=12),
    "scorer": BestOf(best_of=4, n=2, seed=12, rank_by=lambda found: [-len(c.text) for c in found]),
    "beam": Beam(width=3),
    "beam of 1": Beam(width=1),
    "diverse": DiverseBeam(4, 2, scorer=LengthNormalised()),
    "widths": Beam(4, widths=(4, 2), sibling_penalty=0.5, scorer=Contrastive((-2.0, -5.0))),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"max_tokens": 12},
    "logprobs": {"max_tokens": 6, "logprobs": 3},
    "stop": {"max_tokens": 40, "stop": ["e", "lo w", "\n"], "min_tokens": 2, "include_stop": True},
    "processors": {
        "max_tokens": 8,
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 2,
        "logit_bias": {5: 2.0},
        "bad_words": ["hello"],
        "allowed_token_ids": list(range(200)),
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[EngineProcess]:
    with started(folder) as engine:
        yield engine


@pytest.fixture(scope="module")
def maker(engine: EngineProcess) -> RequestMaker:
    return RequestMaker(engine.load_tokenizer(), engine.info)


def prepared(maker: RequestMaker, strategy: Strategy, name: str | None = None, **options: Any) -> Prepared:
    return maker.prepare(
        "hello world, hello", strategy, None, options, chat=False, request_id=name, stream=True
    )


def long(maker: RequestMaker, name: str | None = None) -> Prepared:
    return prepared(maker, Sample(n=2, seed=1), name, max_tokens=480, ignore_eos=True)


def facts(event: Any) -> bytes:
    """All of an event but how long it took."""
    if isinstance(event, GroupFinished):
        times = dict.fromkeys(("queue_time", "time_to_first_token", "time_per_token", "total_time"), 0.0)
        # What was cached differs by what ran before.
        event = dataclasses.replace(event, usage=dataclasses.replace(event.usage, **times))
    return CODEC.encode(event)


def outcome(one: Prepared, events: list[Any]) -> DecodeResult:
    last = one.assembler.events(events[-1])[-1]
    assert isinstance(last, Finished)
    return last.result


def test_trees_are_held_there(engine: EngineProcess, maker: RequestMaker) -> None:
    client, node = Client(engine), NodeRef("tree", 0)
    one = prepared(maker, Sample(n=2, seed=3), max_tokens=4, cache_salt="tree")
    before = engine.stats()
    client.engine.submit([client.job(dataclasses.replace(one.request, origin=node, keep=NodeRef("tree", 1)))])
    assert isinstance(client.last(one.request.request_id), GroupFinished)
    assert engine.stats().held_nodes == before.held_nodes + 3
    engine.tree(Share(node, (NodeRef("tree", 9),), one.request.prompt_len - 1))
    two = prepared(maker, Greedy(), max_tokens=4, cache_salt="another")
    client.engine.submit([client.job(dataclasses.replace(two.request, origin=NodeRef("tree", 9)))])
    event = client.last(two.request.request_id)
    assert event.usage.cached_tokens == two.request.prompt_len - 1
    beam = prepared(maker, Beam(width=3), max_tokens=4).request
    with pytest.raises(InvalidRequestError, match="keep"):
        client.engine.submit([client.job(dataclasses.replace(beam, keep=node))])
    engine.tree(Release("tree"))
    assert engine.stats().held_nodes == before.held_nodes


def test_constraints_go_on_along_paths_there(engine: EngineProcess, maker: RequestMaker) -> None:
    def session(emit: Emit, post: Post) -> TreeSession:
        return TreeSession(engine, maker, OpenTree("hello", seed=3), block_size=4, emit=emit, post=post)

    pattern = Regex("([ab]{3}[xy] ){4}")
    with Tree(LocalLink(session)) as tree:
        [whole] = tree.decode(tree.root, max_tokens=40, constraint=pattern)
        assert re.fullmatch(pattern.pattern, whole.text)
        node = tree.root
        for length in (1, 6, 2, 31):
            [node] = tree.decode(node, max_tokens=length, constraint=pattern)
        assert node.path_token_ids == whole.path_token_ids
        leaves = tree.decode(tree.root, Sample(4), max_tokens=7, constraint=pattern)
        for leaf in tree.decode(leaves, Sample(), max_tokens=40, constraint=pattern):
            assert re.fullmatch(pattern.pattern, leaf.completion)
    assert engine.stats().held_nodes == 0


def test_the_same_events_as_in_process(engine: EngineProcess, maker: RequestMaker, folder: Path) -> None:
    cases = [
        prepared(maker, strategy, f"{kind} {how}", cache_salt=f"{kind} {how}", **options)
        for kind, strategy in STRATEGIES.items()
        for how, options in OPTIONS.items()
    ]
    score = maker.prepare_score("hello", ["world", " there"], top_logprobs=2, request_id="score")
    here = start_engine(load(str(folder), "float32"), CONFIG, threads=1)
    requests = [case.request for case in cases] + [score.request]
    found = []
    ports: list[EnginePort] = [engine, here.thread]
    for port in ports:
        client = Client(port)
        for request in requests:
            client.engine.submit([client.job(request)])
        found.append({name: client.events(name) for name in client.boxes})
    here.thread.close()
    for name in found[0]:
        assert isinstance(found[0][name][-1], GroupFinished), found[0][name][-1]
        assert list(map(facts, found[0][name])) == list(map(facts, found[1][name])), name
    scored = [case for case in cases if case.request.request_id == "scorer plain"]
    result = outcome(scored[0], found[0]["scorer plain"])
    assert len(result.candidates) == 2
    assert [c.score for c in result.candidates] == [-len(c.text) for c in result.candidates]


def test_what_is_known_of_the_model(engine: EngineProcess, folder: Path) -> None:
    assert engine.capacity.num_blocks == 4096
    assert engine.capacity.block_size == 4
    assert engine.info.vocab_size == 264
    assert engine.tokenizer_folder == folder
    stats = engine.stats()
    assert stats.total_blocks == 4096


def test_what_can_never_be_served_is_refused_at_once(engine: EngineProcess, maker: RequestMaker) -> None:
    client, before = Client(engine), engine.stats()
    runs = long(maker, "runs")
    client.send(runs)
    for wrong, kind in (
        (prepared(maker, Beam(width=4000), "wide", max_tokens=400), CapacityError),
        (long(maker, "runs"), InvalidRequestError),
    ):
        with pytest.raises(kind):
            client.engine.submit(
                [Client(engine).job(long(maker, "new").request), Client(engine).job(wrong.request)]
            )
    engine.cancel(runs.request)
    assert isinstance(client.last("runs"), GroupFailed)
    after = engine.stats()
    assert after.failed_groups == before.failed_groups + 1
    assert after.finished_groups == before.finished_groups


def test_a_full_queue_answers_through_the_sink(engine: EngineProcess, maker: RequestMaker) -> None:
    """The first of 1,400 wide requests fill the pool; 1,000 may wait."""
    client = Client(engine)
    many = [prepared(maker, Beam(width=20), f"q{i}", max_tokens=400) for i in range(1400)]
    client.send(*many)
    for one in many:
        engine.cancel(one.request)
    lasts = [client.last(one.request.request_id) for one in many]
    refused = [last for last in lasts if isinstance(last, QueueFullError)]
    assert refused
    assert all(error.retry_after and error.request_id for error in refused)
    cancelled = [last for last in lasts if isinstance(last, GroupFailed)]
    assert len(refused) + len(cancelled) == 1400


def test_a_cancel_is_for_one_request_not_for_its_name(engine: EngineProcess, maker: RequestMaker) -> None:
    client = Client(engine)
    old = prepared(maker, Greedy(), "x", max_tokens=1)
    client.send(old)
    client.last("x")
    new = long(maker, "x")
    client.send(new)
    engine.cancel(old.request)
    failed = engine.stats().failed_groups
    engine.cancel(new.request)
    event = client.last("x")
    assert isinstance(event, GroupFailed)
    assert isinstance(event.error, CancelledError)
    assert engine.stats().failed_groups == failed + 1
    assert engine.stats().used_blocks == 0


def test_killed_under_load_it_serves_again(engine: EngineProcess, maker: RequestMaker) -> None:
    states = States(engine)
    states.wait_for("serving")
    before = Client(engine)
    one = prepared(maker, Beam(width=3), "before", max_tokens=9)
    before.send(one)
    expected = outcome(one, before.events("before")).candidates
    for life in range(2):
        client = Client(engine)
        names = [f"{life}.{i}" for i in range(30)]
        client.send(*(long(maker, name) for name in names))
        client.boxes[names[0]].get(timeout=60)
        pid = engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        for name in names:
            error = client.last(name)
            if not isinstance(error, GroupFinished):
                assert isinstance(error, EngineClosedError), error
                assert error.request_id == name
                assert error.retry_after == 1.0
                assert "SIGKILL" in str(error)
        states.wait_for("down")
        with pytest.raises(UnavailableError) as refused:
            client.send(long(maker))
        assert refused.value.retry_after is not None
        with pytest.raises(UnavailableError):
            engine.stats()
        states.wait_for("serving")
        again = Client(engine)
        again.send(prepared(maker, Beam(width=3), names[0], max_tokens=9))
        result = outcome(one, again.events(names[0]))
        assert result.candidates == expected
        assert engine.pid != pid
        wait_until_gone(pid)


def test_stopped_it_is_ended_and_serves_again(folder: Path, maker: RequestMaker) -> None:
    with started(folder, patience=Patience(silence=8.0)) as engine:
        states, client, pid = States(engine), Client(engine), engine.pid
        client.send(long(maker, "runs"))
        client.boxes["runs"].get(timeout=60)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        error = client.last("runs")
        assert isinstance(error, EngineClosedError)
        assert "said nothing for 8 seconds" in str(error)
        assert error.retry_after == 1.0
        states.wait_for("down")
        states.wait_for("serving")
        one = prepared(maker, Greedy(), "again", max_tokens=3)
        client.send(one)
        assert len(outcome(one, client.events("again")).candidates) == 1
        wait_until_gone(pid)


def _descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_close_ends_what_runs_and_leaves_nothing(
    folder: Path,
    maker: RequestMaker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    journal = tmp_path / "steps.journal"
    gc.collect()
    descriptors, threads = _descriptors(), set(threading.enumerate())
    with started(folder, journal=journal) as engine:
        pid, client, states = engine.pid, Client(engine), States(engine)
        client.send(long(maker, "runs"))
        client.boxes["runs"].get(timeout=60)
        engine.close()
        error = client.last("runs")
        assert isinstance(error, EngineClosedError)
        assert error.request_id == "runs"
        states.wait_for("down")
        for ask in (engine.stats, lambda: client.send(long(maker))):
            with pytest.raises(EngineClosedError):
                ask()
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert "terminate" not in capfd.readouterr().err  # it ends in order, not by an abort in a library
    assert list(tmp_path.iterdir()) == [journal]
    assert journal.stat().st_size > 1000
    assert _descriptors() == descriptors
    assert set(threading.enumerate()) == threads


def test_a_journal_that_cannot_go_on_keeps_no_engine_down(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "journals" / "steps"
    journal.parent.mkdir()
    with started(folder, journal=journal) as engine:
        states = States(engine)
        states.wait_for("serving")
        shutil.rmtree(journal.parent)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        states.wait_for("serving")
        assert engine.stats().running_groups == 0
    assert "journal_ended" in capfd.readouterr().err
    with pytest.raises(InvalidRequestError, match=r"journal: .* can't be written: No such file"):
        started(folder, journal=journal).__enter__()


PARENT = """
import dataclasses, sys
import numpy as np
from tests.engine.engine_process import *
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.step import ProcessorSpec
from forkdecode.types import Greedy, Options
none = np.empty(0, np.int64)
what = DecodeRequest("a", none + 1, Greedy(), Options(max_tokens=500), 0, ProcessorSpec(), none, none, None)
what = dataclasses.replace(what, prompt=np.array([1]), stream=True)
with started(Path(sys.argv[1])) as engine:
    box = queue.SimpleQueue()
    engine.submit([Job(what, box.put)])
    box.get(timeout=PATIENCE)
    print(engine.pid, flush=True)
    sys.stdin.read()
"""


def test_a_parent_that_dies_takes_the_process_with_it(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
        wait_until_gone(pid)


def test_a_model_that_cannot_be_served_is_an_error_of_start() -> None:
    engine = EngineProcess("/no/such/folder", threads=1)
    with pytest.raises(ModelLoadError, match="no file or folder '/no/such/folder'") as error:
        engine.start()
    assert error.value.field == "model"
    with pytest.raises(UnavailableError):
        engine.stats()
    engine.close()


def test_wrong_settings_need_no_process() -> None:
    for name, value in (("model", ""), ("threads", 0), ("max_positions", -1), ("dtype", 3), ("device", None)):
        with pytest.raises(InvalidRequestError) as error:
            EngineProcess(**{name: value})
        assert error.value.field == name


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import forkdecode.engine.remote
heavy = {"transformers", "numba", "triton", "tokenizers"} & set(sys.modules)
assert not heavy, heavy
"""


def test_the_front_end_needs_no_torch() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True, timeout=60)
