"""Steps that are launched before the one before has answered: the same tokens, and all blocks come back."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.engine.core import Engine
from forkdecode.scheduler.events import GroupFailed, GroupFinished, TokensAppended
from forkdecode.scheduler.narrowed import narrowed
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.step import SelectionResult, TopLogprobs
from forkdecode.types import Beam, BestOf, Greedy, Sample, Strategy
from tests.engine.toy_device import ToyDevice, device_engine
from tests.scheduler.engines import assert_idle, decode_alone, request, tokens, toy_engine

STRATEGIES: list[Strategy] = [
    Greedy(),
    Sample(n=1, seed=3),
    Sample(n=4, seed=1),
    Sample(n=3, seed=2, temperature=2.0, top_k=5),
    BestOf(n=2, best_of=4, seed=5),
    Beam(width=3),
]
ENDS = st.lists(st.integers(0, 31), max_size=6, unique=True)
OPTIONS = st.sampled_from(
    [{}, {}, {"min_tokens": 3}, {"logprobs": 2}, {"repetition_penalty": 1.5}, {"stop_token_ids": (8, 9)}]
)


BLOCK_COUNTS = ("unique_block_steps", "unshared_block_steps", "waste")


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[int, DecodeRequest, int | None]]:
    """Requests, the step before which each comes, and that before which it is cancelled."""
    found = []
    for i in range(draw(st.integers(1, 7))):
        asked = request(
            f"r{i}",
            draw(st.lists(st.integers(0, 31), min_size=1, max_size=9)),
            draw(st.sampled_from(STRATEGIES)),
            draw(ENDS),
            max_tokens=draw(st.integers(3, 14)),
            **draw(OPTIONS),
        )
        comes = draw(st.integers(0, 12))
        goes = draw(st.none() | st.none() | st.integers(0, 20).map(lambda n, c=comes: c + n))
        found.append((comes, replace(asked, stream=draw(st.booleans())), goes))
    return found


def run(engine: Engine, load: list[tuple[int, DecodeRequest, int | None]]) -> dict[str, list[Any]]:
    """Each request's events; every count of the pool is checked after every step."""
    events: dict[str, list[Any]] = {asked.request_id: [] for _, asked, _ in load}
    for step in range(500):
        reported = []
        for comes, asked, goes in load:
            if comes == step:
                engine.submit(asked)
            if goes == step:
                reported += engine.cancel(asked.request_id)
        reported += engine.step() if engine.has_work else []
        reported += engine.tell()
        for event in reported:
            events[event.request_id].append(event)
        engine.scheduler.check()
        if step > 40 and not engine.has_work:
            return events
    raise AssertionError("no end")


@given(workloads(), st.sampled_from([40, 60, 4096]), st.booleans())
@settings(deadline=None, max_examples=40)
def test_ahead_or_not_the_same_is_decoded(
    load: list[tuple[int, DecodeRequest, int | None]], num_blocks: int, overcommit: bool
) -> None:
    config = {"num_blocks": num_blocks, "overcommit": overcommit, "max_step_tokens": 64}
    engine, _ = device_engine(**config)
    for name, events in run(engine, load).items():
        last = events[-1]
        asked = next(a for _, a, _ in load if a.request_id == name)
        if isinstance(last, GroupFinished):
            alone = decode_alone(asked, num_blocks=4096)
            assert tokens(last.candidates) == tokens(alone)
            _, told = streamed(events)
            if told and asked.strategy != STRATEGIES[4]:  # of these the best are returned
                assert told == {c.index: list(c.token_ids) for c in last.candidates}
        else:
            assert isinstance(last, GroupFailed)
    assert_idle(engine)


def streamed(events: list[Any]) -> tuple[int, dict[int, list[int]]]:
    """How many candidates were told of, and the tokens of each."""
    found: dict[int, list[int]] = {}
    for event in events:
        if isinstance(event, TokensAppended):
            for candidate, token in zip(event.candidates.tolist(), event.token_ids.tolist(), strict=True):
                found.setdefault(candidate, []).append(token)
    return len(found), found


def launches(device: ToyDevice) -> list[str]:
    return [what for what in device.log if what.startswith(("launch", "answer"))]


def test_samples_keep_the_device_busy() -> None:
    engine, device = device_engine()
    run(engine, [(0, request("a", [3], Sample(n=2, seed=1), max_tokens=6), None)])
    # The fork's tokens are no rows yet, and behind the last token there is nothing.
    ahead = [what for n in range(3, 7) for what in (f"launch {n}", f"answer {n - 1}")]
    assert launches(device) == ["launch 1", "answer 1", "launch 2", *ahead, "answer 6"]


@pytest.mark.parametrize(
    "other",
    [
        request("b", [4], Beam(width=2), max_tokens=6),
        request("b", [4], Greedy(), max_tokens=6, repetition_penalty=1.5),
    ],
    ids=["a beam", "a penalty"],
)
def test_who_needs_the_answer_first_waits_for_it(other: DecodeRequest) -> None:
    engine, device = device_engine()
    run(engine, [(0, request("a", [3], Greedy(), max_tokens=6), None), (0, other, None)])
    assert launches(device) == [f"{part} {n}" for n in range(1, 7) for part in ("launch", "answer")]


def test_a_newcomer_is_let_in_behind_the_step_that_is_launched() -> None:
    engine, device = device_engine()
    load = [
        (0, request("a", [3], Greedy(), max_tokens=30), None),
        (5, request("b", [4], Greedy(), max_tokens=2), None),
    ]
    events = run(engine, load)
    assert isinstance(events["b"][-1], GroupFinished)
    together = launches(device).index("launch 8")  # 7 was launched when b came
    assert launches(device)[together - 1] == "answer 7"


def test_who_waits_for_room_comes_in_when_there_is_some() -> None:
    engine, device = device_engine(num_blocks=18)
    load = [
        (0, request("a", [3], Sample(n=4, seed=1), max_tokens=8), None),
        (0, request("b", [4], Sample(n=4, seed=2), max_tokens=8), None),
    ]
    events = run(engine, load)
    assert all(isinstance(events[name][-1], GroupFinished) for name in "ab")
    assert "answer 3" in launches(device)[launches(device).index("launch 4") :]


@pytest.mark.parametrize("phase", range(4))
def test_who_waits_beside_steps_that_go_ahead_ages(phase: int) -> None:
    engine, _ = device_engine(num_blocks=75, aging_steps=48)
    engine.submit(request("long", [3] * 150, Greedy(), max_tokens=120))
    for _ in range(phase):
        engine.step()
    engine.submit(request("waits", [4] * 160, Greedy(), max_tokens=2))
    waiting = engine.scheduler.groups["waits"]
    for _ in range(112):
        engine.step()
    assert waiting.table is None
    assert waiting.priority == 2


@pytest.mark.parametrize("strategy", [Greedy(), Sample(n=4, seed=1)], ids=["greedy", "samples"])
def test_blocks_are_counted_as_the_steps_have_them(strategy: Strategy) -> None:
    load = [(0, request("a", [3, 5, 7], strategy, max_tokens=12), None)]
    (device, _), plain = device_engine(), toy_engine()
    usages = []
    for engine in (device, plain):
        last = run(engine, load)["a"][-1]
        usages.append({k: v for k, v in asdict(last.usage).items() if "time" not in k})
    assert usages[0] == usages[1]
    counts = [[getattr(e.stats(), name) for name in BLOCK_COUNTS] for e in (device, plain)]
    assert counts[0] == counts[1]


def test_a_step_that_fails_ends_its_groups_once() -> None:
    engine, _ = device_engine(fails={4: "answer"})
    events = run(engine, [(0, request("a", [3], Sample(n=2, seed=1), max_tokens=9), None)])
    assert [type(e) for e in events["a"]] == [GroupFailed]
    assert_idle(engine)


def test_of_draws_those_for_the_rows_that_are_left() -> None:
    numbers = np.arange(4)
    top = TopLogprobs(*(numbers.reshape(4, 1) + base for base in (0, 10, 20, 30)))  # type: ignore[arg-type]
    draws = numbers[[0, 2, 3]]  # nothing follows the second row
    of = [(draws + base).astype(np.float32) for base in (0.5, 0.25, 0.0)]
    result = SelectionResult(7, draws.astype(np.int32), draws + 100, *of, top)
    left = narrowed(result, np.array([1, 3], np.int32))
    assert (left.rows.tolist(), left.tokens.tolist(), left.logprobs.tolist()) == ([1], [103], [3.5])
    assert left.top is not None
    assert left.top.raw_ids.tolist() == [[1], [3]]
    assert left.top.processed.tolist() == [[31], [33]]


def test_what_is_told_is_that_of_an_engine_that_waits() -> None:
    load = [(0, replace(request("a", [3, 5], Sample(n=5, seed=1), [2, 9], max_tokens=20), stream=True), None)]
    engine, _ = device_engine()
    ahead, plain = (run(each, load)["a"][:-1] for each in (engine, toy_engine()))
    assert [repr(e) for e in ahead] == [repr(e) for e in plain]
