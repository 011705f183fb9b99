"""What goes wrong inside: non-finite numbers, a model that raises, a pool that is too small."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
import torch

from forkdecode import (
    LLM,
    Beam,
    BestOf,
    CapacityError,
    Greedy,
    GroupFailedError,
    ModelLoadError,
    Sample,
    Strategy,
)
from forkdecode.engine.thread import Job
from forkdecode.scheduler.request import worst_case_blocks
from tests.llm.models import PROMPT, STRATEGIES, VOCAB, assert_idle, ids, opened, outcome, text_of, tiny_llama

BAD = VOCAB["!"]
SAFE = {"logit_bias": {BAD: -1e4}}


def poison(value: float) -> Any:
    """A model in which one token's embedding, and nothing else, is not finite."""

    def prepare(model: Any) -> None:
        model.model.embed_tokens.weight[BAD] = value

    return tiny_llama(prepare=prepare, tie_word_embeddings=False)


@pytest.fixture(scope="module", params=[float("nan"), float("inf")], ids=["nan", "inf"])
def poisoned(request: Any) -> Any:
    with opened(poison(request.param), block_size=4) as llm:
        yield llm


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_non_finite_logits_fail_their_group_alone(poisoned: LLM, strategy: Strategy) -> None:
    expected = outcome(poisoned.decode(PROMPT, strategy, max_tokens=10, **SAFE))
    bad = [
        (poisoned.submit(PROMPT + "!", strategy, max_tokens=10), 1),
        (poisoned.submit(PROMPT + "! and so on", strategy, max_tokens=10), 1),
        (poisoned.submit(PROMPT, strategy, forced_prefix="ab!cd", max_tokens=10), 4),
    ]
    good = [poisoned.submit(PROMPT, strategy, max_tokens=10, **SAFE) for _ in range(2)]
    for handle, at in bad:
        with pytest.raises(GroupFailedError, match=f"non-finite logits at generated token {at}") as caught:
            handle.result()
        assert caught.value.request_id == handle.request_id
    for handle in good:
        assert [c[:4] for c in outcome(handle.result())] == [c[:4] for c in expected]
    assert_idle(poisoned)


def test_nothing_that_failed_is_found_again(poisoned: LLM) -> None:
    """Blocks of failed groups are used by later ones, padded reads included; prompts that begin
    like a failed one take nothing of it from the prefix cache."""
    expected = outcome(poisoned.decode("a clean prompt " * 4, Beam(width=4), max_tokens=12, **SAFE))
    for _ in range(3):
        for strategy in STRATEGIES.values():
            with pytest.raises(GroupFailedError):
                poisoned.decode("a clean prompt " * 4 + "! and more", strategy, max_tokens=5)
        again = outcome(poisoned.decode("a clean prompt " * 4, Beam(width=4), max_tokens=12, **SAFE))
        assert [c[:4] for c in again] == [c[:4] for c in expected]


def test_a_small_pool_is_not_poisoned() -> None:
    """Every block has held NaN before a clean request gets it."""
    with opened(poison(float("nan")), num_blocks=24, block_size=4, prefix_cache=False) as llm:
        expected = outcome(llm.decode([5] * 20, Greedy(), max_tokens=12, **SAFE))
        for _ in range(4):
            with pytest.raises(GroupFailedError):
                llm.decode([BAD] * 60, Greedy(), max_tokens=12)
            assert outcome(llm.decode([5] * 20, Greedy(), max_tokens=12, **SAFE)) == expected


def test_a_sample_that_draws_the_bad_token_fails_with_its_group(poisoned: LLM) -> None:
    with pytest.raises(GroupFailedError, match="non-finite logits at generated token 2"):
        poisoned.decode(PROMPT, Sample(n=4, seed=1), max_tokens=6, logit_bias={BAD: 1e3})
    last = poisoned.decode(PROMPT, Sample(n=4, seed=1), max_tokens=1, logit_bias={BAD: 1e3})
    assert {c.token_ids for c in last.candidates} == {(BAD,)}  # never computed


def test_a_model_that_is_bad_for_all_is_not_served() -> None:
    def prepare(model: Any) -> None:
        model.lm_head.weight[7] = float("nan")

    with pytest.raises(ModelLoadError, match="NaN or infinite logits"):
        LLM(tiny_llama(prepare=prepare, tie_word_embeddings=False), num_blocks=64)


def test_a_step_that_raises_fails_its_requests_each_with_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened() as llm:
        expected = outcome(llm.decode(PROMPT, Beam(width=2), max_tokens=6))
        runner: Any = llm._session.engine.thread._loop._engine._runner
        execute = runner.execute
        left = [3]

        def fail(plan: Any) -> Any:
            if len(plan.selections) == 3:
                left[0] -= 1
                if left[0] == 0:
                    raise MemoryError("no room for this step")
            return execute(plan)

        monkeypatch.setattr(runner, "execute", fail)
        handles = [llm.submit(PROMPT, s, max_tokens=300) for s in (Greedy(), Sample(n=2), Beam(width=2))]
        errors = []
        for handle in handles:
            with pytest.raises(
                GroupFailedError, match=r"the model failed in step \d+: MemoryError: no room"
            ) as caught:
                handle.result()
            errors.append(caught.value)
        assert [e.request_id for e in errors] == [h.request_id for h in handles]
        assert len({id(e) for e in errors}) == 3
        assert all(isinstance(e.__cause__, MemoryError) for e in errors)
        assert [c[:4] for c in outcome(llm.decode(PROMPT, Beam(width=2), max_tokens=6))] == [
            c[:4] for c in expected
        ]


# -- pools that are too small -------------------------------------------------------------------------


def test_what_can_never_fit_is_refused_at_once_with_the_numbers() -> None:
    with opened(num_blocks=40, block_size=4) as llm:
        for strategy, rows in ((Greedy(), 1), (Sample(n=6), 6), (BestOf(best_of=6), 6), (Beam(width=6), 6)):
            fits = max(m for m in range(1, 200) if worst_case_blocks(9, m, rows, 4) <= 40)
            assert llm.decode([5] * 9, strategy, max_tokens=fits, ignore_eos=True).candidates
            needed = worst_case_blocks(9, fits + 1, rows, 4)
            with pytest.raises(CapacityError, match=f"can need {needed} blocks of .*, but the pool has 40"):
                llm.submit([5] * 9, strategy, max_tokens=fits + 1)
        assert llm.stats().preemptions == 0


@pytest.mark.parametrize("swap_memory", [0, "1MiB"])
@pytest.mark.parametrize("preemption", ["auto", "recompute", "swap"])
def test_what_is_admitted_always_finishes(preemption: str, swap_memory: Any) -> None:
    requests = [(PROMPT, s) for s in STRATEGIES.values()] * 2
    with opened(block_size=2, prefix_cache=False) as llm:
        expected = [[c[:4] for c in outcome(llm.decode(p, s, max_tokens=9))] for p, s in requests]
    settings: dict[str, Any] = {"preemption": preemption, "swap_memory": swap_memory, "block_size": 2}
    with opened(num_blocks=44, **settings) as small:
        handles = [small.submit(p, s, max_tokens=9) for p, s in requests]
        assert [[c[:4] for c in outcome(h.result(timeout=120))] for h in handles] == expected
        stats = small.stats()
        if swap_memory == 0 or preemption == "recompute":
            assert stats.swapped_blocks == 0


@pytest.mark.parametrize(
    "strategy", [Sample(n=3, seed=4), BestOf(best_of=3, n=3, seed=4), Beam(width=3)], ids=str
)
def test_overcommit_ends_what_outgrows_the_pool_with_what_it_has(strategy: Strategy) -> None:
    options: dict[str, Any] = {"max_tokens": 200, "ignore_eos": True, "logprobs": 1}
    with opened() as llm:
        whole = llm.decode("hello", strategy, **options)
    with opened(num_blocks=12, block_size=4, overcommit=True, swap_memory=0) as small:
        with pytest.raises(CapacityError, match="the pool ran out") as caught:
            small.decode("hello", strategy, request_id="big", **options)
        assert caught.value.request_id == "big"
        partial = caught.value.partial
        assert partial is not None
        assert len(partial.candidates) == 3
        for candidate in partial.candidates:
            assert candidate.finish_reason == "cancelled"
            assert 8 <= len(candidate.token_ids) < 40
            assert candidate.text == text_of(candidate.token_ids)
            assert candidate.logprobs is not None
            assert len(candidate.logprobs) == len(candidate.token_ids)
            if not isinstance(strategy, Beam):
                full = next(c for c in whole.candidates if c.index == candidate.index)
                assert full.token_ids[: len(candidate.token_ids)] == candidate.token_ids
        assert small.decode("hello", max_tokens=5, ignore_eos=True).candidates  # it goes on


def test_overcommit_lets_others_live() -> None:
    with opened(num_blocks=30, block_size=4, overcommit=True) as small:
        handles = [
            small.submit([5 + i] * 6, Beam(width=3), max_tokens=150, ignore_eos=True) for i in range(3)
        ]
        short = [small.submit([9] * 6, Greedy(), max_tokens=8, ignore_eos=True) for _ in range(3)]
        for handle in handles:
            with pytest.raises(CapacityError, match="the pool ran out"):
                handle.result(timeout=120)
        assert {h.result(timeout=120).candidates[0].token_ids for h in short} == {
            small.decode([9] * 6, max_tokens=8, ignore_eos=True).candidates[0].token_ids
        }


def test_overcommit_refuses_what_cannot_start() -> None:
    with opened(num_blocks=10, block_size=4, overcommit=True) as small:
        with pytest.raises(
            CapacityError, match="its prompt and the first step of 8 candidates need 11 blocks"
        ):
            small.submit([5] * 9, Beam(width=8))
        with pytest.raises(CapacityError):
            small.submit([5] * 80)


def test_a_full_queue_refuses_the_newest() -> None:
    options = {"max_tokens": 30, "ignore_eos": True}
    with opened(num_blocks=20, block_size=4, max_waiting=2) as llm:
        running, go_on = threading.Event(), threading.Event()

        def hold(_: object) -> None:
            running.set()
            assert go_on.wait(60)

        first = llm._session.requests.prepare([5], Beam(width=2), None, options, chat=False, request_id=None)
        first = dataclasses.replace(first.request, stream=True)
        llm._session.engine.thread.submit([Job(first, hold)])
        assert running.wait(60)  # the engine's thread stands still in `hold`
        handles = [llm.submit([5], Beam(width=2), **options) for _ in range(4)]
        go_on.set()
        assert [len(handle.result().candidates) for handle in handles[:2]] == [2, 2]
        for handle in handles[2:]:
            with pytest.raises(CapacityError, match="2 requests are waiting, which is the limit"):
                handle.result()


def test_prompts_longer_than_a_step(llm: LLM) -> None:
    with opened(max_step_tokens=7, max_prefill_tokens=2, block_size=4) as small:
        prompt = list(range(60, 160))
        assert small.decode(prompt, max_tokens=6).candidates[0].token_ids == (
            llm.decode(prompt, max_tokens=6).candidates[0].token_ids
        )


def test_bfloat16(llm: LLM) -> None:
    with opened(tiny_llama(dtype=torch.bfloat16)) as half:
        assert half.info.dtype == "bfloat16"
        for strategy in STRATEGIES.values():
            result = half.decode(PROMPT, strategy, max_tokens=5, forced_prefix=ids("he"))
            assert all(c.text.startswith("he") for c in result.candidates)
