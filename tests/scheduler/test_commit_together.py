"""Groups that are committed together report what they would one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from forkdecode.scheduler import scheduler as module
from forkdecode.scheduler.events import GroupEvent, GroupFailed, GroupFinished
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.step import StepOutput
from forkdecode.types import (
    Beam,
    BestOf,
    CustomScorer,
    DiverseBeam,
    Greedy,
    Sample,
    StochasticBeam,
    Strategy,
)
from tests.scheduler.engines import assert_idle, request, run, toy_engine

STRATEGIES: tuple[Strategy, ...] = (
    Beam(4),
    Sample(3, seed=1),
    Beam(3, early_stopping=True),
    Greedy(),
    BestOf(4, n=2, seed=5),
    Beam(4, widths=(2, 3, 4)),
    DiverseBeam(4, groups=2),
    StochasticBeam(3, seed=4),
    Beam(2, early_stopping="never", length_penalty=2.0),
    Beam(1),
    Beam(3, sibling_penalty=0.3),
)


def requests(stream: bool, **options: Any) -> list[DecodeRequest]:
    found = []
    for i, strategy in enumerate(STRATEGIES):
        own = request(f"r{i}", range(3 + 2 * i), strategy, eos=(5, 9)[: i % 3], max_tokens=9 + i, **options)
        found.append(dataclasses.replace(own, stream=stream))
    return found


def all_events(asked: Sequence[DecodeRequest], **config: Any) -> list[list[str]]:
    """Of each step, those of a request together."""
    engine = toy_engine(**config)
    for one in asked:
        engine.submit(one)
    steps = []
    while engine.has_work:
        steps.append([shown(e) for e in sorted(engine.step(), key=lambda e: e.request_id)])
        engine.scheduler.check()
    assert_idle(engine)
    return steps


def shown(event: GroupEvent) -> str:
    """All but times."""
    fields = dataclasses.asdict(event)
    usage = {k: v for k, v in fields.pop("usage", {}).items() if "time" not in k}
    return f"{type(event).__name__} {fields} {usage}"


@pytest.mark.parametrize("num_blocks", [400, 60])
@pytest.mark.parametrize("options", [{}, {"logprobs": 2}, {"repetition_penalty": 1.3, "min_tokens": 4}])
@pytest.mark.parametrize("stream", [False, True])
def test_as_one_by_one(
    stream: bool, options: dict[str, Any], num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = requests(stream, **options)
    together = all_events(asked, num_blocks=num_blocks)
    asked_of = []

    def alone(groups: Sequence[Any], results: Sequence[Any]) -> list[None]:
        asked_of.append(len(results))
        return [None] * len(groups)

    monkeypatch.setattr(module, "all_going_on", alone)
    assert all_events(asked, num_blocks=num_blocks) == together
    assert max(asked_of) > 5


def test_a_result_at_fault_fails_its_group_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy_engine()
    for one in requests(stream=False):
        engine.submit(one)
    execute, wrong = engine._runner.execute, engine.scheduler.groups["r0"].number

    def broken(plan: Any) -> StepOutput:
        output = execute(plan)
        return dataclasses.replace(
            output,
            results=tuple(
                dataclasses.replace(r, rows=np.full_like(r.rows, 77))
                if r.group_id == wrong and s.num_generated == 4
                else r
                for r, s in zip(output.results, plan.selections, strict=True)
            ),
        )

    monkeypatch.setattr(engine._runner, "execute", broken)
    last: dict[str, GroupEvent] = {}
    while engine.has_work:
        for event in engine.step():
            last[event.request_id] = event
        engine.scheduler.check()
    assert isinstance(last.pop("r0"), GroupFailed)
    assert all(isinstance(event, GroupFinished) for event in last.values())
    assert_idle(engine)


def raises_late(sums: Any, length: int, data: Any) -> Any:
    if length >= data:
        raise KeyError("price")
    return sums + 1000.0 * length  # longer is better, so that a full pool does not end the search


def nan_late(sums: Any, length: int, data: Any) -> Any:
    return raises_late(sums, min(length, data - 1), data) * (np.nan if length >= data else 1.0)


@pytest.mark.parametrize("function", [raises_late, nan_late], ids=["raises", "nan"])
@pytest.mark.parametrize("late", [53, 54])
def test_a_scorer_at_fault_while_all_go_on_fails_its_request_alone(function: Any, late: int) -> None:
    """Where no candidate ends in the step, a full pool is what the scorer is asked about first."""
    engine = toy_engine()
    beam = Beam(2, scorer=CustomScorer(function, late))
    engine.submit(request("bad", (3, 4, 6), beam, eos=(5, 9, 13), max_tokens=60))
    engine.submit(request("greedy", (7, 8), Greedy(), max_tokens=56))
    engine.submit(request("sample", (7, 8, 1), Sample(3, seed=1), max_tokens=56))
    last = run(engine)
    bad = last.pop("bad")
    assert isinstance(bad, GroupFailed)
    assert bad.error.field == "scorer"
    assert all(isinstance(event, GroupFinished) for event in last.values())
    assert_idle(engine)
