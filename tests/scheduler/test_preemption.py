"""Preemption changes nothing that a caller can see: each kind, at every step of a run."""

from __future__ import annotations

import pytest

from forkdecode.errors import CapacityError
from forkdecode.scheduler.events import GroupFailed, GroupFinished
from forkdecode.step import BlockMoves, StepOutput, StepPlan
from forkdecode.types import Beam, BestOf, Greedy, Sample
from tests.scheduler.engines import assert_idle, decode_alone, request, run, tokens, toy_engine

REQUESTS = [
    request("greedy", range(3, 12), Greedy(), eos=[1], max_tokens=9),
    request("sample", range(5, 19), Sample(n=3, seed=3), eos=[1, 2], max_tokens=8),
    request("best", [4] * 8, BestOf(best_of=4, n=2, seed=4), eos=[1], max_tokens=7),
    request("beam", range(20, 31), Beam(width=4), eos=[1], max_tokens=9, repetition_penalty=1.3),
    request("wide", [9], Beam(width=7), eos=[1, 2], max_tokens=6),
]
ALONE = {r.request_id: tokens(decode_alone(r)) for r in REQUESTS}


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("block_size", [1, 4, 8])
@pytest.mark.parametrize("at", range(1, 12))
def test_results_are_the_same(mode: str, block_size: int, at: int) -> None:
    engine = toy_engine(preemption=mode, block_size=block_size, max_prefill_tokens=7, num_blocks=2000)
    for what in REQUESTS:
        engine.submit(what)
    finished = {}
    step = 0
    while engine.has_work:
        step += 1
        if step in (at, at + 3):
            for what in REQUESTS:
                engine.scheduler.preempt(what.request_id)
        for event in engine.step():
            assert isinstance(event, GroupFinished), event
            finished[event.request_id] = tokens(event.candidates)
        engine.scheduler.check()
        assert step < 200
    assert finished == ALONE
    assert_idle(engine)
    stats = engine.stats()
    if at <= 5:
        assert stats.preemptions
        assert (stats.swapped_blocks > 0) == (mode == "swap")


@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
def test_a_pool_too_small_for_all_serves_all(mode: str) -> None:
    engine = toy_engine(preemption=mode, num_blocks=48)
    for what in REQUESTS:
        engine.submit(what)
    last = run(engine)
    for what in REQUESTS:
        event = last[what.request_id]
        assert isinstance(event, GroupFinished), event
        assert tokens(event.candidates) == ALONE[what.request_id]
    assert_idle(engine)


def test_recompute_computes_each_shared_block_once() -> None:
    engine = toy_engine(preemption="recompute", prefix_cache=False, num_blocks=500)
    what = request("beam", range(2, 22), Beam(width=4), max_tokens=12)
    engine.submit(what)
    for _ in range(6):
        engine.step()
    group = engine.scheduler._batcher.running[0]
    assert group.table is not None
    unique, size = group.table.num_unique, engine.scheduler.pool.block_size
    engine.scheduler.preempt("beam")
    engine.step()
    event = run(engine)["beam"]
    assert isinstance(event, GroupFinished)
    assert event.usage.recomputed_tokens <= unique * size
    assert event.usage.preemptions == 1
    assert tokens(event.candidates) == tokens(decode_alone(what))


def test_swap_that_does_not_fit_the_host_becomes_recompute() -> None:
    engine = toy_engine(preemption="swap", host_slots=1)
    engine.submit(REQUESTS[3])
    engine.step()
    engine.step()
    engine.scheduler.preempt("beam")
    event = run(engine)["beam"]
    assert isinstance(event, GroupFinished)
    assert event.usage.swapped_blocks == 0
    assert event.usage.recomputed_tokens > 0
    assert tokens(event.candidates) == ALONE["beam"]
    assert_idle(engine)


@pytest.mark.parametrize("later", [0, 1, 2])
@pytest.mark.parametrize("at", range(2, 8))
def test_a_step_that_fails_while_groups_are_swapped_loses_no_content(at: int, later: int) -> None:
    """Whoever was on the way to the host or back ends with the step; the others' content is right."""
    engine = toy_engine(preemption="swap", num_blocks=2000)
    for what in REQUESTS:
        engine.submit(what)
    engine._runner.fail_at = {at + later}
    last = {}
    for step in range(1, 200):
        if step == at:
            for what in REQUESTS[::2]:
                engine.scheduler.preempt(what.request_id)
        last.update({event.request_id: event for event in engine.step()})
        engine.scheduler.check()
    assert len(last) == len(REQUESTS)
    for name, event in last.items():
        if isinstance(event, GroupFinished):
            assert tokens(event.candidates) == ALONE[name]
        else:
            assert isinstance(event, GroupFailed)
            assert "the toy was told to fail" in str(event.error)
    assert_idle(engine)


def test_what_a_group_was_to_get_back_goes_nowhere_once_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that fills the pool comes back from the host, finds no room to go on, and ends before a step
    has moved anything: its blocks are the next one's."""
    engine = toy_engine(num_blocks=12, overcommit=True, preemption="swap", prefix_cache=False)
    large = request("large", range(3, 14), Sample(n=2, seed=1), max_tokens=60)
    small = request("small", range(5, 14), Sample(n=2, seed=2), max_tokens=9)
    for what in (large, small):
        engine.submit(what)
    scheduler, execute = engine.scheduler, engine._runner.execute
    moved: list[BlockMoves] = []

    def schedule() -> StepPlan | None:
        plan = type(scheduler).schedule(scheduler)
        if plan is None and not full:
            full.append(True)
            scheduler.preempt("large")
        return plan

    def executed(plan: StepPlan) -> StepOutput:
        moved.append(plan.swap_in)
        return execute(plan)

    full: list[bool] = []
    monkeypatch.setattr(scheduler, "schedule", schedule)
    monkeypatch.setattr(engine._runner, "execute", executed)
    last = run(engine, limit=200)
    assert isinstance(last["large"].error, CapacityError)
    assert tokens(last["small"].candidates) == tokens(decode_alone(small))
    assert full
    assert sum(map(len, moved)) > 0
    for swap_in in moved:
        assert len(set(swap_in.target.tolist())) == len(swap_in)
    assert_idle(engine)
