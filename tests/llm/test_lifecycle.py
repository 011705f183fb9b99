"""Requests and engines begin, are cut short and end; nobody waits for ever and no block is lost."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forkdecode import (
    LLM,
    Beam,
    CancelledError,
    CapacityError,
    Delta,
    EngineClosedError,
    EventStream,
    Finished,
    Greedy,
    InvalidRequestError,
    ModelLoadError,
    Sample,
    Started,
)
from tests.llm.models import PROMPT, STRATEGIES, assert_idle, ids, opened, outcome, text_of, tiny_llama

LONG: dict[str, Any] = {"max_tokens": 450, "ignore_eos": True}


def requests_in(llm: LLM) -> int:
    stats = llm.stats()
    return stats.running_groups + stats.waiting_groups


def wait_until_idle(llm: LLM) -> None:
    """For what the engine is about to do; fails rather than hangs. Each look is between two steps."""
    deadline = time.monotonic() + 60
    while requests_in(llm):
        assert time.monotonic() < deadline, "requests are still running"


def error_of(call: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_cancel_from_another_thread(llm: LLM) -> None:
    for strategy in STRATEGIES.values():
        handle = llm.submit(PROMPT, strategy, stream=True, **LONG)
        assert isinstance(next(handle), Started)
        in_thread(handle.cancel).join()
        with pytest.raises(CancelledError) as caught:
            handle.result(timeout=60)
        assert caught.value.request_id == handle.request_id
        partial = caught.value.partial
        assert partial is not None
        assert {c.finish_reason for c in partial.candidates} <= {"cancelled"}
        for candidate in partial.candidates:
            assert candidate.text == text_of(candidate.token_ids)
        with pytest.raises(CancelledError):  # it stays so
            handle.result()
        assert handle.done
        handle.cancel()
        assert_idle(llm)


def test_what_a_cancelled_request_had_is_what_it_would_have_had(llm: LLM) -> None:
    whole = llm.decode(PROMPT, Sample(n=2, seed=6), logprobs=2, max_tokens=60, ignore_eos=True)
    handle = llm.submit(PROMPT, Sample(n=2, seed=6), logprobs=2, stream=True, **LONG)
    while not (isinstance(event := next(handle), Delta) and event.candidate == 1):
        pass
    handle.cancel()
    with pytest.raises(CancelledError) as caught:
        handle.result()
    assert caught.value.partial is not None
    for candidate in caught.value.partial.candidates:
        full = whole.candidates[candidate.index]
        n = min(len(candidate.token_ids), 60)
        assert n >= 1
        assert candidate.token_ids[:n] == full.token_ids[:n]
        assert candidate.logprobs is not None
        assert candidate.logprobs[:n] == (full.logprobs or ())[:n]
        assert candidate.cumulative_logprob == pytest.approx(sum(t.logprob for t in candidate.logprobs))


def test_streams_that_are_left_early_cancel(llm: LLM) -> None:
    def closed(stream: EventStream) -> None:
        next(stream)
        stream.close()
        assert list(stream) == []

    def never_read(stream: EventStream) -> None:
        stream.close()

    def dropped(stream: EventStream) -> None:
        del stream

    def by_with(stream: EventStream) -> None:
        with stream as events:
            next(events)

    for leave in (closed, never_read, dropped, by_with):
        failed = llm.stats().failed_groups
        leave(llm.stream(PROMPT, Sample(n=3), **LONG))
        gc.collect()
        wait_until_idle(llm)
        assert llm.stats().failed_groups == failed + 1
        assert_idle(llm)


def test_a_late_cancel_does_not_hit_a_later_request_of_the_same_id(llm: LLM) -> None:
    first = llm.submit(PROMPT, max_tokens=2, request_id="again")
    wait_until_idle(llm)
    second = llm.submit(PROMPT, max_tokens=40, ignore_eos=True, request_id="again")
    assert not first.done  # nobody has taken its last event
    first.cancel()
    assert len(second.result().candidates[0].token_ids) == 40
    assert len(first.result().candidates[0].token_ids) == 2


def test_results_after_a_timeout(llm: LLM) -> None:
    handle = llm.submit(PROMPT, max_tokens=100, ignore_eos=True)
    for timeout in (0, -1, 1e-9):
        with pytest.raises(TimeoutError, match=r"request 'request-\w+-\d+' is not done after"):
            handle.result(timeout=timeout)
    assert not handle.done
    result = handle.result(timeout=1e300)
    assert len(result.candidates[0].token_ids) == 100
    assert handle.result(timeout=0) is result
    assert handle.result() is result
    assert list(handle) == []


@pytest.mark.parametrize("timeout", ["1", True, float("nan"), float("inf"), [1]])
def test_a_timeout_is_a_number_of_seconds(llm: LLM, timeout: Any) -> None:
    handle = llm.submit(PROMPT, max_tokens=1)
    with pytest.raises(InvalidRequestError, match="timeout: "):
        handle.result(timeout=timeout)
    handle.result()


def test_several_threads_may_wait_for_one_request(llm: LLM) -> None:
    handle = llm.submit(PROMPT, Beam(width=2), stream=True, max_tokens=60, ignore_eos=True)
    results: list[Any] = []
    events: list[Any] = []
    threads = [in_thread(lambda: results.append(handle.result())) for _ in range(3)]
    threads.append(in_thread(lambda: events.extend(handle)))
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(results) == 3
    assert results[0] is results[1] is results[2]


def test_iterating_goes_on_where_it_was_left(llm: LLM) -> None:
    handle = llm.submit(PROMPT, Sample(n=3, seed=2), stream=True, max_tokens=5)
    events = []
    while not (events and isinstance(events[-1], Finished)):
        for event in handle:
            events.append(event)
            break
    assert isinstance(events[0], Started)
    tokens = [e.token_ids for e in events if isinstance(e, Delta) and e.candidate == 2]
    assert tuple(t for ts in tokens for t in ts) == events[-1].result.candidates[2].token_ids


# -- ids ----------------------------------------------------------------------------------------------


def test_ids_in_use_are_refused_and_free_again_after_the_end(llm: LLM) -> None:
    handle = llm.submit(PROMPT, request_id="mine", **LONG)
    with pytest.raises(InvalidRequestError, match="request_id: 'mine' is in use") as caught:
        llm.decode(PROMPT, request_id="mine")
    assert caught.value.field == "request_id"
    handle.cancel()
    with pytest.raises(CancelledError):
        handle.result()
    assert llm.decode(PROMPT, max_tokens=1, request_id="mine").request_id == "mine"


def test_ids_that_callers_make_up_never_meet_those_that_are_given(llm: LLM) -> None:
    handles = [llm.submit(PROMPT, request_id=f"request-{i}", max_tokens=30) for i in range(1, 300, 7)]
    assert all(llm.decode(PROMPT, max_tokens=1) for _ in range(20))
    for handle in handles:
        handle.result()


# -- batches ------------------------------------------------------------------------------------------


def test_a_batch_keeps_its_order(llm: LLM) -> None:
    prompts = [PROMPT[:i] for i in range(1, 9)]
    strategies = [STRATEGIES[name] for name in ("beam", "greedy", "sample", "best_of")] * 2
    results = llm.decode(prompts, strategies, max_tokens=5)
    assert [r.prompt_token_ids for r in results] == [ids(p) for p in prompts]
    assert [r.strategy for r in results] == strategies
    for prompt, strategy, result in zip(prompts, strategies, results, strict=True):
        assert [c[:4] for c in outcome(llm.decode(prompt, strategy, max_tokens=5))] == [
            c[:4] for c in outcome(result)
        ]


@pytest.mark.parametrize(
    ("prompts", "more", "field", "error"),
    [
        (["a", ""], {}, "prompt", InvalidRequestError),
        (["a", 5], {}, "prompt", InvalidRequestError),
        (["a", [1, 10**6]], {}, "prompt", InvalidRequestError),
        (["a", "b"], {"request_id": ["x", "x"]}, "request_id", InvalidRequestError),
        (["a", "b"], {"request_id": "x"}, "request_id", InvalidRequestError),
        (["a", "b"], {"request_id": ["x"]}, "request_id", InvalidRequestError),
        (["a", "b"], {"strategy": [Greedy()]}, "strategy", InvalidRequestError),
        (["a", "b"], {"strategy": [Greedy(), Beam]}, "strategy", InvalidRequestError),
        (["a", "b"], {"options": [None, "fast"]}, "options", InvalidRequestError),
        (["a", "b"], {"strategy": [Greedy(), Beam(width=60_000)]}, "width", CapacityError),
    ],
)
def test_a_batch_is_sent_whole_or_not_at_all(
    llm: LLM, prompts: Any, more: dict[str, Any], field: str, error: type[Exception]
) -> None:
    before = llm.stats()
    with pytest.raises(error) as caught:
        llm.decode(prompts, **more)
    assert caught.value.field == field  # type: ignore[attr-defined]
    after = llm.stats()
    assert (after.steps, after.failed_groups) == (before.steps, before.failed_groups)


def test_an_id_in_use_stops_the_whole_batch(llm: LLM) -> None:
    handle = llm.submit(PROMPT, request_id="busy", **LONG)
    with pytest.raises(InvalidRequestError, match="'busy' is in use"):
        llm.decode(["a", "b", "c"], request_id=["free", "also free", "busy"], **LONG)
    assert requests_in(llm) == 1
    handle.cancel()
    with pytest.raises(CancelledError):
        handle.result()


def test_the_wrong_one_of_a_batch_is_named(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"prompt: is empty; .* \(prompt 3 of 4\)"):
        llm.decode(["a", "b", "", "c"])


def test_an_empty_batch_is_empty(llm: LLM) -> None:
    assert llm.decode([]) == []


# -- closing ------------------------------------------------------------------------------------------


def test_close_ends_what_runs_and_what_waits() -> None:
    with opened(num_blocks=80, block_size=4) as other:
        pass
    llm = LLM(tiny_llama(), num_blocks=300, block_size=4, threads=1)
    handles = [llm.submit([5] * 9, Beam(width=2), stream=True, max_tokens=400) for _ in range(4)]
    assert isinstance(next(handles[0]), Started)
    ends: list[Exception] = []
    waiting = [in_thread(lambda h=h: ends.append(error_of(h.result))) for h in handles]
    llm.close()
    for thread in waiting:
        thread.join(60)
        assert not thread.is_alive()
    assert [type(e) for e in ends] == [EngineClosedError] * len(handles)
    for handle in handles:
        with pytest.raises(EngineClosedError, match="the engine was closed before the request finished"):
            handle.result()
    for call in (
        lambda: llm.decode([1]),
        lambda: llm.submit([1]),
        lambda: llm.stream([1]),
        llm.stats,
        other.stats,
    ):
        with pytest.raises(EngineClosedError, match="the engine is closed"):
            call()
    llm.close()
    handles[0].cancel()


def test_close_from_two_threads_at_once() -> None:
    llm = LLM(tiny_llama(), num_blocks=64, threads=1)
    threads = [in_thread(llm.close) for _ in range(4)]
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_an_engine_that_nobody_holds_closes() -> None:
    llm = LLM(tiny_llama(), num_blocks=2048, threads=1)
    thread = next(t for t in threading.enumerate() if t.name == "forkdecode-engine" and t.is_alive()
                  and t is llm._session.engine.thread._thread)  # fmt: skip
    handle = llm.submit([3], max_tokens=20, ignore_eos=True)
    gone = weakref.ref(llm)
    del llm
    gc.collect()
    assert gone() is None
    assert len(handle.result().candidates[0].token_ids) == 20  # who holds a handle holds the engine
    del handle
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_a_program_may_end_in_the_middle() -> None:
    program = """
        from forkdecode import Beam
        from tests.llm.models import TOKENIZER, tiny_llama
        from forkdecode import LLM
        llm = LLM(tiny_llama(), tokenizer=TOKENIZER, num_blocks=4096, threads=1)
        stream = llm.stream("hello", Beam(width=4), max_tokens=500, ignore_eos=True)
        next(stream)
        print("the end")
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "the end\n"), ended.stderr
    assert "Traceback" not in ended.stderr


# -- many threads -------------------------------------------------------------------------------------


def test_threads_share_an_engine(llm: LLM) -> None:
    expected = {name: outcome(llm.decode(PROMPT, s, max_tokens=6)) for name, s in STRATEGIES.items()}
    wrong: list[Any] = []

    def work(number: int) -> None:
        for i in range(8):
            name = sorted(STRATEGIES)[(number + i) % len(STRATEGIES)]
            try:
                if (number + i) % 4 == 0:
                    llm.stream(PROMPT, STRATEGIES[name], max_tokens=50).close()
                if (number + i) % 5 == 0:
                    llm.stats()
                found = outcome(llm.decode(PROMPT, STRATEGIES[name], max_tokens=6))
                if [c[:4] for c in found] != [c[:4] for c in expected[name]]:
                    wrong.append((name, found))
            except BaseException as error:
                wrong.append(error)

    threads = [in_thread(lambda n=n: work(n)) for n in range(4)]
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert wrong == []
    wait_until_idle(llm)


def test_two_engines_run_side_by_side() -> None:
    with opened(num_blocks=512) as one, opened(tiny_llama(seed=1), num_blocks=512) as two:
        expected = [outcome(e.decode(PROMPT, Beam(width=4), max_tokens=20)) for e in (one, two)]
        for _ in range(3):
            handles = [e.submit(PROMPT, Beam(width=4), max_tokens=20) for e in (one, two)]
            found = [outcome(h.result()) for h in handles]
            assert [[c[:4] for c in r] for r in found] == [[c[:4] for c in r] for r in expected]


DROPPED = """
from tests.llm.models import TOKENIZER, tiny_llama
from forkdecode import LLM, Beam, Started
llm = LLM(tiny_llama(), tokenizer=TOKENIZER, num_blocks=4096, threads=1)
handle = llm.submit("hello", Beam(width=8), max_tokens=400, ignore_eos=True, stream=True)
assert isinstance(next(handle), Started)
del llm, handle  # the engine's thread is told to end, and the interpreter does not wait for it
"""


def test_an_engine_that_was_dropped_just_before_the_end() -> None:
    command = [sys.executable, "-c", DROPPED]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_model_that_was_taken_is_not_saved_without_its_layers(tmp_path: Path) -> None:
    model = tiny_llama()
    with LLM(model, num_blocks=64, threads=1), pytest.raises(RuntimeError, match="deepcopy"):
        model.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_model_serves_one_engine_only() -> None:
    model = tiny_llama()
    with LLM(model, num_blocks=64, threads=1) as llm:
        llm.decode([3, 4], max_tokens=2)
        with pytest.raises(ModelLoadError, match="model: an engine has taken this one"):
            LLM(model, num_blocks=64, threads=1)
        llm.decode([3, 4], max_tokens=2)
    with pytest.raises(ModelLoadError, match="loaded anew"):
        LLM(model, num_blocks=64, threads=1)


@pytest.mark.parametrize("of", ["llm", "handle", "stream", "tree"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_holds_an_engine_is_not_copied(llm: LLM, of: str, copied: Callable[[Any], Any]) -> None:
    """A shallow copy of what does not own the engine is harmless, and is no matter of ours."""
    if copied is copy.copy and of != "llm":
        return
    with llm.tree(PROMPT) as tree, llm.stream(PROMPT, max_tokens=1) as stream:
        handle = llm.submit(PROMPT, max_tokens=1)
        holder = {"llm": llm, "handle": handle, "stream": stream, "tree": tree}[of]
        with pytest.raises(TypeError, match="cannot be copied or sent to another process"):
            copied(holder)
        handle.result()
    wait_until_idle(llm)
