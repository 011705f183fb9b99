from __future__ import annotations

import dataclasses

import pytest

from forkdecode.errors import CancelledError, CapacityError, GroupFailedError, InvalidRequestError
from forkdecode.scheduler.events import GroupFailed, GroupFinished
from forkdecode.scheduler.request import worst_case_blocks
from forkdecode.types import Beam, BestOf, Greedy, Sample
from tests.scheduler.engines import assert_idle, decode_alone, renamed, request, run, tokens, toy_engine
from tests.scheduler.toy import ToyRunner


def toy(engine) -> ToyRunner:
    return engine._runner


def test_mixed_strategies_batch_and_do_not_disturb_each_other() -> None:
    requests = [
        request("a", [3, 4, 5], Greedy(), eos=[1], max_tokens=10),
        request("b", [3, 4, 5], Sample(n=5, seed=1), eos=[1], max_tokens=6),
        request("c", [9] * 30, Beam(width=5, early_stopping=True), eos=[1, 2], max_tokens=8),
        request("d", [8] * 7, BestOf(best_of=6, n=3, seed=2, first_finished=3), eos=[1], max_tokens=12),
    ]
    engine = toy_engine()
    for what in reversed(requests):
        engine.submit(what)
    last = run(engine)
    for what in requests:
        event = last[what.request_id]
        assert isinstance(event, GroupFinished)
        assert tokens(event.candidates) == tokens(decode_alone(what))
    assert_idle(engine)


@pytest.mark.parametrize("block_size", [1, 2, 8, 128])
@pytest.mark.parametrize("chunk", [1, 5, 512])
def test_block_size_and_chunking_do_not_matter(block_size: int, chunk: int) -> None:
    what = request("x", range(1, 30), Beam(width=4), eos=[1], max_tokens=9)
    expected = tokens(decode_alone(what))
    found = decode_alone(what, block_size=block_size, max_prefill_tokens=chunk, max_step_tokens=chunk)
    assert tokens(found) == expected


def test_prompt_is_prefilled_once_whatever_the_width() -> None:
    engine = toy_engine(prefix_cache=False)
    engine.submit(request("x", range(25), Beam(width=8), max_tokens=1))
    run(engine)
    assert toy(engine).computed == 25


def test_a_cached_prompt_is_not_computed_again() -> None:
    engine = toy_engine()
    what = request("first", range(25), Greedy(), max_tokens=1)
    engine.submit(what)
    run(engine)
    before = toy(engine).computed
    engine.submit(renamed(what, "second"))
    event = run(engine)["second"]
    assert isinstance(event, GroupFinished)
    assert event.usage.cached_tokens == 24
    assert toy(engine).computed - before == 1


def test_a_continued_dialogue_hits_generated_blocks() -> None:
    engine = toy_engine()
    engine.submit(request("first", range(10), Greedy(), max_tokens=10))
    answer = run(engine)["first"].candidates[0].token_ids
    engine.submit(request("second", [*range(10), *answer, 5, 6], Greedy(), max_tokens=1))
    assert run(engine)["second"].usage.cached_tokens >= 16


def test_salts_separate() -> None:
    engine = toy_engine()
    engine.submit(request("a", range(25), Greedy(), max_tokens=1, cache_salt="one"))
    run(engine)
    engine.submit(request("b", range(25), Greedy(), max_tokens=1, cache_salt="two"))
    assert run(engine)["b"].usage.cached_tokens == 0


def test_too_big_is_refused_with_the_numbers() -> None:
    engine = toy_engine(num_blocks=20)
    needed = worst_case_blocks(10, 30, 4, 4)
    with pytest.raises(CapacityError, match=f"{needed} blocks.*pool has 20"):
        engine.submit(request("x", range(10), Beam(width=4), max_tokens=30))
    assert_idle(engine)
    assert not engine.has_work


def test_what_is_admitted_always_finishes_in_the_smallest_pool() -> None:
    what = request("x", range(10), Beam(width=4), max_tokens=12)
    blocks = worst_case_blocks(10, 12, 4, 4)
    engine = toy_engine(num_blocks=blocks)
    names = [f"r{i}" for i in range(6)]
    for name in names:
        engine.submit(renamed(what, name))
    last = run(engine)
    assert all(isinstance(last[name], GroupFinished) for name in names)
    assert_idle(engine)


def test_overcommit_ends_with_what_there_is() -> None:
    engine = toy_engine(num_blocks=14, overcommit=True)
    engine.submit(request("x", range(10), Sample(n=4, seed=1), max_tokens=60))
    event = run(engine)["x"]
    assert isinstance(event, GroupFailed)
    assert isinstance(event.error, CapacityError)
    assert len(event.candidates) == 4
    assert {c.finish_reason for c in event.candidates} == {"cancelled"}
    assert all(len(c.token_ids) >= 4 for c in event.candidates)
    assert_idle(engine)
    with pytest.raises(CapacityError, match="first step"):
        engine.submit(request("y", range(60), Greedy(), max_tokens=1))


def test_cancel_returns_every_block_and_says_what_was_there() -> None:
    engine = toy_engine()
    engine.submit(request("x", range(10), Beam(width=4), max_tokens=50))
    engine.submit(request("waiting", range(10), Beam(width=4), max_tokens=50))
    for _ in range(5):
        engine.step()
    (event,) = engine.cancel("x")
    assert isinstance(event, GroupFailed)
    assert isinstance(event.error, CancelledError)
    assert len(event.candidates) == 4
    (event,) = engine.cancel("waiting")
    assert engine.cancel("unknown") == []
    assert not engine.has_work
    assert_idle(engine)


def test_cancel_while_parked_frees_host_memory() -> None:
    engine = toy_engine(preemption="swap")
    engine.submit(request("x", range(30), Beam(width=4), max_tokens=50))
    for _ in range(3):
        engine.step()
    engine.scheduler.preempt("x")
    engine.scheduler.schedule()  # parks it; nothing else runs
    engine.cancel("x")
    assert_idle(engine)


def test_a_failing_model_fails_its_step_alone() -> None:
    engine = toy_engine()
    toy(engine).fail_at = {3}
    engine.submit(request("x", range(10), Greedy(), max_tokens=5))
    for _ in range(3):
        events = engine.step()
    assert isinstance(events[0], GroupFailed)
    assert isinstance(events[0].error, GroupFailedError)
    engine.submit(request("y", range(10), Greedy(), max_tokens=5))
    assert isinstance(run(engine)["y"], GroupFinished)
    assert_idle(engine)


def test_a_failing_group_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy_engine()
    for name in "abc":
        engine.submit(request(name, range(10), Sample(n=2, seed=3), max_tokens=5))
    engine.step()
    broken = next(g for g in engine.scheduler._batcher.running if g.request_id == "b")
    monkeypatch.setattr(broken.policy, "decide", lambda *_: 1 / 0)
    last = run(engine)
    assert isinstance(last["b"], GroupFailed)
    assert "ZeroDivisionError" in str(last["b"].error)
    assert isinstance(last["a"], GroupFinished)
    assert isinstance(last["c"], GroupFinished)
    assert_idle(engine)


def test_blocks_of_a_failed_group_are_cleared_before_reuse(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy_engine(prefix_cache=False)
    engine.submit(request("x", range(10), Greedy(), max_tokens=5))
    engine.step()
    broken = engine.scheduler._batcher.running[0]
    assert broken.table is not None
    held = set(broken.table.references().tolist())
    monkeypatch.setattr(broken.policy, "decide", lambda *_: 1 / 0)
    engine.step()
    engine.submit(request("y", range(3), Greedy(), max_tokens=5))
    plan = engine.scheduler.schedule()
    assert plan is not None
    assert held <= set(plan.zero_blocks.tolist())


def test_id_in_use_and_full_queue() -> None:
    engine = toy_engine(max_waiting=1)
    engine.submit(request("x", range(3), Greedy()))
    with pytest.raises(CapacityError, match="limit"):
        engine.submit(request("y", range(3), Greedy()))
    engine.step()
    with pytest.raises(InvalidRequestError, match="request_id"):
        engine.submit(request("x", range(3), Greedy()))


def test_priority_first_then_arrival_and_aging() -> None:
    engine = toy_engine(num_blocks=40, aging_steps=30)
    big = worst_case_blocks(4, 20, 6, 4)
    assert big > 20
    for i in range(4):
        engine.submit(request(f"low{i}", range(4), Beam(width=6), max_tokens=20))
    engine.submit(request("high", range(4), Beam(width=6), max_tokens=20, priority=5))
    order = [e.request_id for _ in range(400) if engine.has_work for e in engine.step()]
    assert order[0] == "high"
    assert order[1:] == [f"low{i}" for i in range(4)]

    engine = toy_engine(num_blocks=40, aging_steps=10)
    engine.submit(request("first", range(4), Beam(width=6), max_tokens=20, priority=1))
    engine.step()
    engine.submit(request("low", range(4), Beam(width=6), max_tokens=20))
    finished, n = [], 0
    while "low" not in finished:  # a new urgent request for every step that is taken
        engine.submit(request(f"urgent{n}", range(4), Beam(width=6), max_tokens=20, priority=1))
        n += 1
        finished += [e.request_id for e in engine.step()]
        assert n < 300, "starved"


def test_running_streams_wait_for_a_chunk_only() -> None:
    engine = toy_engine(max_prefill_tokens=8, max_step_tokens=64, num_blocks=2000)
    engine.submit(request("stream", range(4), Greedy(), max_tokens=50))
    engine.step()
    engine.submit(request("long", [3] * 400, Greedy(), max_tokens=2))
    for _ in range(20):
        plan = engine.scheduler.schedule()
        assert plan is not None
        assert len(plan.decodes) >= 1
        assert len(plan.token_ids) <= 1 + 8 + 1
        engine.scheduler.commit(toy(engine).execute(plan))


def test_rows_beyond_the_budget_take_turns() -> None:
    engine = toy_engine(max_step_tokens=8, num_blocks=2000)
    for i in range(6):
        engine.submit(request(f"r{i}", [i], Sample(n=6, seed=i), max_tokens=12))
    last = run(engine)
    assert len(last) == 6
    steps = [e.usage.steps for e in last.values()]
    assert max(steps) <= 13


def test_usage_adds_up() -> None:
    engine = toy_engine(prefix_cache=False)
    engine.submit(request("x", range(10), Sample(n=3, seed=1), max_tokens=5))
    usage = run(engine)["x"].usage
    assert usage.prompt_tokens == 10
    assert usage.generated_tokens == 15
    assert usage.steps == 5
    # Prompt 10 = 2 full blocks and a half one, copied by all rows but one: at the end 14 tokens.
    assert usage.copies == 2
    assert usage.peak_unshared_blocks == 3 * 4
    assert usage.peak_unique_blocks == 2 + 3 * 2
    assert 0 < usage.saved < 1


def test_stats_count_tokens_as_they_come() -> None:
    engine = toy_engine()
    engine.submit(request("x", range(10), Sample(n=3, seed=1), max_tokens=5))
    seen = []
    while engine.has_work:
        engine.step()
        seen.append(engine.stats().generated_tokens)
    assert seen == [3, 6, 9, 12, 15]


@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_policy_that_breaks_fails_its_group_alone(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """In the middle of planning: what the others were given stands, and every block comes back."""
    engine = toy_engine()
    mates = [
        request("a", [3, 4, 5], Greedy(), eos=[1], max_tokens=10),
        request("b", [9] * 30, Beam(width=5), eos=[1, 2], max_tokens=8),
    ]
    broken = request("broken", [9] * 29, Beam(width=3), max_tokens=8)
    for what in (mates[0], dataclasses.replace(broken, stream=True), mates[1]):
        engine.submit(what)
    policy = engine.scheduler._groups["broken"].policy
    choose = policy.choose

    def choose_or_break(rows):
        if rows.generated == at:
            raise ZeroDivisionError("a policy's bug")
        return choose(rows)

    monkeypatch.setattr(policy, "choose", choose_or_break)
    last = run(engine)
    error = last["broken"].error
    assert isinstance(error, GroupFailedError)
    assert "internal error: ZeroDivisionError: a policy's bug" in str(error)
    for what in mates:
        assert tokens(last[what.request_id].candidates) == tokens(decode_alone(what))
    assert_idle(engine)


def test_policies_that_break_in_steps_of_their_own_fail_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps in which nothing is computed, but which are no sign that nothing can be."""
    engine = toy_engine()
    for name in "abc":
        engine.submit(request(name, [3], Greedy(), max_tokens=10))
        policy = engine.scheduler.groups[name].policy
        monkeypatch.setattr(policy, "choose", lambda rows: 1 // 0)
        [event] = engine.step()
        assert isinstance(event, GroupFailed)
        assert "ZeroDivisionError" in str(event.error)
    assert_idle(engine)


def test_a_group_that_can_never_be_let_in_ends_and_lets_others_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy_engine()
    admission = engine.scheduler._batcher._admission
    admit = admission.admit
    monkeypatch.setattr(
        admission, "admit", lambda group, *rest: group.request_id != "big" and admit(group, *rest)
    )
    for name in ("small", "big", "behind"):
        engine.submit(request(name, [3, 4], Greedy(), max_tokens=3))
    last = run(engine, limit=20)
    assert isinstance(last["small"], GroupFinished)
    assert isinstance(last["behind"], GroupFinished)
    with pytest.raises(CapacityError, match="can't take it, though nothing else runs"):
        raise last["big"].error
    assert_idle(engine)
