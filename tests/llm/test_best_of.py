"""Best of n: rankings, scorers that do and don't behave, and stopping early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from forkdecode import LLM, AsyncLLM, BestOf, Candidate, GroupFailedError
from tests.llm.models import EOS_ID, PROMPT, TOKENIZER, tiny_llama


def by_length(candidates: Sequence[Candidate]) -> list[float]:
    return [-len(c.text) for c in candidates]


def test_a_scorer_ranks_all_of_them_in_the_callers_thread(llm: LLM) -> None:
    seen: list[Any] = []

    def scorer(candidates: Sequence[Candidate]) -> list[float]:
        seen.append((threading.current_thread(), candidates))
        return by_length(candidates)

    result = llm.decode(PROMPT, BestOf(best_of=6, n=2, seed=1, rank_by=scorer), max_tokens=9)
    ((thread, given),) = seen
    assert thread is threading.current_thread()
    assert [c.index for c in given] == list(range(6))
    assert [c.score for c in result.candidates] == sorted(by_length(given), reverse=True)[:2]
    assert all(c.score == -len(c.text) for c in result.candidates)


def test_equal_scores_stay_in_order(llm: LLM) -> None:
    result = llm.decode(PROMPT, BestOf(best_of=5, n=5, seed=1, rank_by=lambda c: [0] * len(c)), max_tokens=3)
    assert [c.index for c in result.candidates] == [0, 1, 2, 3, 4]


def raises(_: Sequence[Candidate]) -> list[float]:
    raise LookupError("the scorer's own fault")


class NotShownError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not to be shown")


def raises_what_is_not_shown(_: Sequence[Candidate]) -> list[float]:
    raise NotShownError


def leaves(_: Sequence[Candidate]) -> list[float]:
    raise SystemExit


BAD: dict[str, Callable[[Sequence[Candidate]], Any]] = {
    "raises": raises,
    "raises what is not shown": raises_what_is_not_shown,
    "leaves": leaves,
    "too few": lambda c: [1.0] * (len(c) - 1),
    "too many": lambda c: [1.0] * (len(c) + 1),
    "nan": lambda c: [float("nan")] * len(c),
    "infinite": lambda c: [float("inf")] * len(c),
    "none": lambda c: None,
    "texts": lambda c: ["good"] * len(c),
    "nones": lambda c: [None] * len(c),
    "number": lambda c: 1.0,
}


@pytest.mark.parametrize("scorer", BAD.values(), ids=BAD)
def test_a_bad_scorer_fails_its_request_by_name(llm: LLM, scorer: Any) -> None:
    strategy = BestOf(best_of=3, seed=1, rank_by=scorer)
    mate = llm.submit(PROMPT, BestOf(best_of=3, seed=1), max_tokens=6)
    handle = llm.submit(PROMPT, strategy, max_tokens=6)
    for _ in range(2):
        with pytest.raises(GroupFailedError, match="rank_by: the scorer failed") as caught:
            handle.result(60)
    assert handle.done
    assert caught.value.field == "rank_by"
    assert caught.value.request_id
    assert caught.value.partial is not None
    assert [c.index for c in caught.value.partial.candidates] == [0, 1, 2]
    if scorer is raises:
        assert isinstance(caught.value.__cause__, LookupError)
    assert len(mate.result().candidates) == 1


def test_scorers_of_coroutines_run_in_the_loops_thread() -> None:
    async def run() -> None:
        threads = []

        def scorer(candidates: Sequence[Candidate]) -> list[float]:
            threads.append(threading.current_thread())
            return by_length(candidates)

        async with AsyncLLM(tiny_llama(), tokenizer=TOKENIZER, num_blocks=256, threads=1) as llm:
            result = await llm.decode(PROMPT, BestOf(best_of=3, seed=1, rank_by=scorer), max_tokens=6)
            assert threads == [threading.current_thread()]
            assert len(result.candidates) == 1
            with pytest.raises(GroupFailedError, match="the scorer's own fault"):
                await llm.decode(PROMPT, BestOf(best_of=3, seed=1, rank_by=raises), max_tokens=6)

    asyncio.run(run())


def test_mean_and_sum_rank_differently(llm: LLM) -> None:
    options = {"max_tokens": 30, "logit_bias": {EOS_ID: 3.0}}
    by_sum = llm.decode(PROMPT, BestOf(best_of=8, n=8, seed=2), **options).candidates
    by_mean = llm.decode(PROMPT, BestOf(best_of=8, n=8, seed=2, rank_by="mean_logprob"), **options).candidates
    assert [c.score for c in by_sum] == sorted((c.cumulative_logprob for c in by_sum), reverse=True)
    means = [c.mean_logprob for c in by_mean]
    assert means == [c.cumulative_logprob / len(c.token_ids) for c in by_mean]
    assert [c.score for c in by_mean] == pytest.approx(sorted(means, reverse=True))
    assert {c.index for c in by_sum} == {c.index for c in by_mean}


def test_first_finished_stops_the_rest(llm: LLM) -> None:
    options = {"max_tokens": 60, "logit_bias": {EOS_ID: 2.0}}
    everyone = llm.decode(PROMPT, BestOf(best_of=8, n=8, seed=5), **options).candidates
    ends = sorted(len(c.token_ids) for c in everyone)
    for first in (1, 3, 8):
        result = llm.decode(PROMPT, BestOf(best_of=8, n=1, seed=5, first_finished=first), **options)
        in_time = [c for c in everyone if len(c.token_ids) <= ends[first - 1]]
        best = max(in_time, key=lambda c: c.cumulative_logprob)
        assert result.candidates == (best,)
        assert result.usage.steps == ends[first - 1]
        assert result.usage.generated_tokens == sum(min(len(c.token_ids), ends[first - 1]) for c in everyone)


def test_first_finished_with_a_scorer_ranks_those_alone(llm: LLM) -> None:
    seen: list[int] = []

    def scorer(candidates: Sequence[Candidate]) -> list[float]:
        seen.append(len(candidates))
        assert all(c.finish_reason == "eos" for c in candidates)
        return by_length(candidates)

    strategy = BestOf(best_of=8, n=1, seed=5, first_finished=2, rank_by=scorer)
    llm.decode(PROMPT, strategy, max_tokens=60, logit_bias={EOS_ID: 2.0})
    assert 2 <= seen[0] < 8


@pytest.mark.parametrize("first_finished", [None, 2])
def test_unranked_gives_what_a_scorer_would_be_given(llm: LLM, first_finished: int | None) -> None:
    given: list[Candidate] = []

    def scorer(candidates: Sequence[Candidate]) -> list[float]:
        given.extend(candidates)
        return by_length(candidates)

    more: dict[str, Any] = {"best_of": 8, "n": 1, "seed": 5, "first_finished": first_finished}
    options = {"max_tokens": 60, "logit_bias": {EOS_ID: 2.0}}
    llm.decode(PROMPT, BestOf(rank_by=scorer, **more), **options)
    result = llm.decode(PROMPT, BestOf(rank_by="none", **more), **options)
    assert result.candidates == tuple(given)
    assert [c.index for c in given] == sorted(c.index for c in given)
    assert len(given) == 8 or first_finished
