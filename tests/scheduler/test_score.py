"""Score requests on the toy model: every log-probability is the toy's own, whatever happens between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.errors import CancelledError, CapacityError, GroupFailedError
from forkdecode.scheduler.events import CandidateRecord, GroupFailed, GroupFinished
from forkdecode.scheduler.request import most_blocks
from forkdecode.step import I64, Gather, StepPlan
from forkdecode.types import Beam, Greedy
from tests.scheduler.engines import (
    VOCAB,
    assert_idle,
    decode_alone,
    request,
    run,
    score_request,
    tokens,
    toy_engine,
)
from tests.scheduler.toy import ToyRunner

TOY = ToyRunner(1, 1, 1, VOCAB)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]
RAGGED = [[1, 2, 3], [4], [7, 8, 9, 10, 11, 3, 4, 5, 6, 7, 8], [4, 4, 4, 4, 4], [1, 2, 3]]


def own_logprobs(prompt: Sequence[int], continuation: Sequence[int]) -> list[float]:
    found = []
    for i, token in enumerate(continuation):
        logits = TOY.logits(np.array([*prompt, *continuation[:i]], np.int64)).astype(np.float64)
        found.append(float(logits[token] - np.logaddexp.reduce(logits)))
    return found


def assert_scored(
    candidates: Sequence[CandidateRecord], prompt: Sequence[int], continuations: Sequence[Sequence[int]]
) -> None:
    assert [c.index for c in candidates] == list(range(len(continuations)))
    for record, continuation in zip(candidates, continuations, strict=True):
        assert record.token_ids == tuple(continuation)
        assert record.finish_reason == "length"
        assert record.logprobs is not None
        assert [t.token_id for t in record.logprobs] == list(continuation)
        want = own_logprobs(prompt, continuation)
        assert [t.logprob for t in record.logprobs] == pytest.approx(want, abs=1e-5)
        assert [t.selection_logprob for t in record.logprobs] == [t.logprob for t in record.logprobs]
        assert record.cumulative_logprob == pytest.approx(sum(want), abs=1e-4)
        assert record.score == record.cumulative_logprob


@settings(max_examples=80)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30),
    continuations=st.lists(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20), min_size=1, max_size=6
    ),
    block_size=st.sampled_from([1, 2, 4, 8]),
    budget=st.integers(1, 64),
    prefix_cache=st.booleans(),
)
def test_any_lengths(
    prompt: list[int], continuations: list[list[int]], block_size: int, budget: int, prefix_cache: bool
) -> None:
    engine = toy_engine(block_size=block_size, max_step_tokens=budget, prefix_cache=prefix_cache)
    for name in ("first", "again"):  # the second finds the prompt in the cache
        engine.submit(score_request(name, prompt, continuations))
        event = run(engine)[name]
        assert isinstance(event, GroupFinished)
        assert_scored(event.candidates, prompt, continuations)
    assert_idle(engine)


class Watched:
    """The toy, and the plans it was given."""

    def __init__(self, toy: Any) -> None:
        self.toy = toy
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan) -> Any:
        self.plans.append(plan)
        return self.toy.execute(plan)


def watched(**config: Any) -> tuple[Any, Watched]:
    engine = toy_engine(**config)
    runner = Watched(engine._runner)
    engine._runner = runner
    return engine, runner


def test_a_step_for_each_length() -> None:
    """The prompt and all first tokens, then up to the end of the shortest that is left, and so on.
    No last token is computed, the prompt and common steps once."""
    engine, runner = watched()
    engine.submit(score_request("a", PROMPT, RAGGED))
    run(engine)
    assert [len(plan.selections) for plan in runner.plans] == [1, 2, 2, 6]
    assert [s.rows for s in runner.plans[1].selections] == [4, 4]
    computed = sum(len(c) - 1 for c in RAGGED) + len(PROMPT)
    assert sum(len(plan.token_ids) for plan in runner.plans) == computed


def test_one_continuation_is_one_step() -> None:
    engine, runner = watched()
    engine.submit(score_request("a", PROMPT, [RAGGED[2]]))
    event = run(engine)["a"]
    assert isinstance(event, GroupFinished)
    assert_scored(event.candidates, PROMPT, [RAGGED[2]])
    assert [len(plan.token_ids) for plan in runner.plans] == [len(PROMPT) + len(RAGGED[2]) - 1]


def test_known_tokens_keep_to_the_budget_of_prefill_beside_running_streams() -> None:
    engine, runner = watched(max_step_tokens=64, max_prefill_tokens=8)
    stream = request("stream", PROMPT, Greedy(), max_tokens=40)
    engine.submit(stream)
    for _ in range(3):
        engine.step()
    engine.submit(score_request("score", [5], [[1] * 30, [2] * 30]))
    last = run(engine)
    beside = [plan for plan in runner.plans if len(plan.selections) > 1]
    assert beside
    for plan in beside:
        assert sum(s.rows for s in plan.selections if isinstance(s.choice, Gather)) <= 8
        assert any(not isinstance(s.choice, Gather) for s in plan.selections), "the stream goes on"
    event = last["score"]
    assert isinstance(event, GroupFinished)
    assert_scored(event.candidates, [5], [[1] * 30, [2] * 30])


def test_more_rows_than_the_budget_go_one_token_at_a_time() -> None:
    engine, runner = watched(max_step_tokens=4)
    continuations = [[i, i + 1, i + 2] for i in range(9)]
    engine.submit(score_request("a", PROMPT, continuations))
    event = run(engine)["a"]
    assert isinstance(event, GroupFinished)
    assert_scored(event.candidates, PROMPT, continuations)
    assert max(len(plan.token_ids) for plan in runner.plans) == 9


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preempted_at_every_step(mode: str) -> None:
    for at in range(1, 4):
        engine = toy_engine(preemption=mode, max_step_tokens=12)
        engine.submit(score_request("a", PROMPT, RAGGED, logprobs=3))
        for _ in range(at):
            engine.step()
        engine.scheduler.preempt("a")
        event = run(engine)["a"]
        assert isinstance(event, GroupFinished)
        assert event.usage.preemptions == 1
        assert_scored(event.candidates, PROMPT, RAGGED)
        assert_idle(engine)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("first", ["score", "beam"])
def test_makes_room_and_is_made_room_for(first: str, mode: str) -> None:
    """A pool too small for all at once: groups preempt each other, and every answer stays the same."""
    engine = toy_engine(num_blocks=28, preemption=mode, overcommit=True, max_step_tokens=10)
    scores = [score_request(f"s{i}", [i, *PROMPT], [[i] * 40, [i, 2, 3], [5] * 29]) for i in range(3)]
    beams = [request(f"b{i}", [i, *PROMPT], Beam(width=4), max_tokens=30) for i in range(2)]
    sent = {what.request_id: what for what in (scores + beams if first == "score" else beams + scores)}
    for what in sent.values():
        engine.submit(what)
    last = run(engine)
    behind = beams if first == "score" else scores
    assert any(last[what.request_id].usage.preemptions for what in behind)
    for name, what in sent.items():
        event = last[name]
        assert isinstance(event, GroupFinished), event
        assert tokens(event.candidates) == tokens(decode_alone(what))
    assert_idle(engine)


def test_top_logprobs_are_each_positions_own() -> None:
    engine = toy_engine()
    engine.submit(score_request("a", PROMPT, RAGGED, logprobs=4))
    event = run(engine)["a"]
    assert isinstance(event, GroupFinished)
    for record, continuation in zip(event.candidates, RAGGED, strict=True):
        for i, token in enumerate(record.logprobs or ()):
            logits = TOY.logits(np.array([*PROMPT, *continuation[:i]], np.int64)).astype(np.float64)
            best = np.argsort(-logits, kind="stable")[:4]
            assert [t for t, _ in token.top] == best.tolist()
            want = logits[best] - np.logaddexp.reduce(logits)
            assert [v for _, v in token.top] == pytest.approx(want.tolist(), abs=1e-5)
            assert token.top_processed == token.top


class Poisoned(ToyRunner):
    """A toy whose logits break after a token."""

    def __init__(self, *sizes: Any, value: float) -> None:
        super().__init__(*sizes)
        self.value = value

    def logits(self, context: I64) -> np.ndarray:
        logits = super().logits(context)
        if context[-1] == 31:
            logits[:] = self.value
        return logits


@pytest.mark.parametrize(
    ("value", "said"), [(np.nan, "non-finite"), (np.inf, "non-finite"), (-np.inf, "no legal")]
)
def test_broken_logits_fail_the_group_alone(value: float, said: str) -> None:
    engine = toy_engine(num_blocks=256)
    engine._runner = Poisoned(256, 4, 4096, VOCAB, value=value)
    engine.submit(score_request("bad", PROMPT, [[1, 2, 31, 4, 5, 6], [3, 3, 3, 3, 3, 3]]))
    engine.submit(score_request("good", PROMPT, RAGGED))
    last = run(engine)
    failed, event = last["bad"], last["good"]
    assert isinstance(failed, GroupFailed)
    assert isinstance(failed.error, GroupFailedError)
    assert said in str(failed.error)
    assert isinstance(event, GroupFinished)
    assert_scored(event.candidates, PROMPT, RAGGED)
    assert_idle(engine)


def test_a_model_that_fails_in_a_step_of_known_tokens() -> None:
    engine = toy_engine()
    engine._runner.fail_at = {2}
    engine.submit(score_request("a", PROMPT, RAGGED))
    assert isinstance(run(engine)["a"], GroupFailed)
    assert_idle(engine)


def test_cancelled_between_steps() -> None:
    for steps in range(4):
        engine = toy_engine()
        engine.submit(score_request("a", PROMPT, RAGGED))
        for _ in range(steps):
            engine.step()
        (event,) = engine.cancel("a")
        assert isinstance(event, GroupFailed)
        assert isinstance(event.error, CancelledError)
        engine.scheduler.check()
        assert_idle(engine)


def test_capacity_counts_rows_only_while_they_live() -> None:
    """One long continuation among many short ones costs the blocks of one long row."""
    what = score_request("a", PROMPT, [[1, 2]] * 50 + [[3] * 200])
    needed = most_blocks(what, 51, 4)
    assert needed < 51 * 5
    engine = toy_engine(num_blocks=needed)
    engine.submit(what)
    event = run(engine)["a"]
    assert isinstance(event, GroupFinished)
    assert event.usage.peak_unique_blocks <= needed
    with pytest.raises(CapacityError, match="51 continuations") as caught:
        toy_engine(num_blocks=needed - 1).submit(what)
    assert caught.value.field == "continuations"


def test_prompt_and_continuations_enter_the_prefix_cache() -> None:
    engine = toy_engine()
    engine.submit(score_request("a", PROMPT, [[1, 2, 3, 4, 5, 6, 7, 8], [2, 3, 4]]))
    run(engine)
    engine.submit(score_request("b", [*PROMPT, 1, 2, 3, 4, 5, 6, 7, 8], [[9, 9]]))
    event = run(engine)["b"]
    assert isinstance(event, GroupFinished)
    assert event.usage.cached_tokens == 16
    assert_scored(event.candidates, [*PROMPT, 1, 2, 3, 4, 5, 6, 7, 8], [[9, 9]])
