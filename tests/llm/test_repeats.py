"""Results repeat bit for bit, whatever else runs, in any order, with any pool."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch

from forkdecode import LLM, Beam, BestOf, DecodeResult, Greedy, Sample, Strategy
from tests.llm.models import PROMPT, opened, outcome, tiny_llama

REQUESTS: list[tuple[Any, Strategy, dict[str, Any]]] = [
    (PROMPT, Greedy(), {"max_tokens": 12}),
    (PROMPT, Sample(n=4, seed=1), {"max_tokens": 9}),
    ("hello, " * 9, Sample(n=2, seed=2, temperature=0.6, top_p=0.9), {"max_tokens": 11, "stop": ["a", "b"]}),
    ([7] * 50, BestOf(best_of=5, n=2, seed=3, rank_by="mean_logprob"), {"max_tokens": 7}),
    ("world", Beam(width=4), {"max_tokens": 10, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3}),
    (PROMPT + "!", Beam(width=7, early_stopping=True, length_penalty=0.5), {"max_tokens": 8}),
    ([3], Beam(width=1), {"max_tokens": 12, "min_tokens": 5}),
]


def alone(llm: LLM) -> list[list[tuple[Any, ...]]]:
    return [outcome(llm.decode(p, s, **o)) for p, s, o in REQUESTS]


def together(llm: LLM, order: list[int], **more: Any) -> list[list[tuple[Any, ...]]]:
    handles = {i: llm.submit(REQUESTS[i][0], REQUESTS[i][1], **REQUESTS[i][2], **more) for i in order}
    return [outcome(handles[i].result()) for i in range(len(REQUESTS))]


def without_numbers(results: list[list[tuple[Any, ...]]]) -> list[list[tuple[Any, ...]]]:
    """Tokens, texts and reasons: recomputed keys and values may differ in their last bits."""
    return [[c[:4] for c in result] for result in results]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_batch_mates_and_order_change_nothing(dtype: torch.dtype) -> None:
    with opened(tiny_llama(dtype=dtype), prefix_cache=False) as llm:
        expected = alone(llm)
        assert alone(llm) == expected
        for seed in range(4):
            order = list(range(len(REQUESTS)))
            random.Random(seed).shuffle(order)
            assert together(llm, order) == expected


def test_a_new_engine_repeats(llm: LLM) -> None:
    with opened(prefix_cache=False) as one, opened(prefix_cache=False) as two:
        assert alone(one) == alone(two)


@pytest.mark.parametrize("block_size", [1, 2, 128])
def test_block_size_and_cache_hits_change_no_token(llm: LLM, block_size: int) -> None:
    expected = without_numbers(alone(llm))
    with opened(block_size=block_size) as other:
        assert without_numbers(alone(other)) == expected
        assert without_numbers(alone(other)) == expected  # from the prefix cache


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_swapping_changes_nothing(dtype: torch.dtype) -> None:
    settings = {"block_size": 2, "prefix_cache": False}
    with opened(tiny_llama(dtype=dtype), **settings) as llm:
        expected = alone(llm)
    with opened(tiny_llama(dtype=dtype), num_blocks=90, preemption="swap", **settings) as small:
        for _ in range(2):
            assert together(small, list(range(len(REQUESTS)))) == expected
        stats = small.stats()
        assert stats.preemptions
        assert stats.swapped_blocks


def test_recomputing_changes_no_token() -> None:
    with opened(block_size=2, prefix_cache=False) as llm:
        expected = without_numbers(alone(llm))
    for cached in (False, True):
        with opened(block_size=2, num_blocks=90, preemption="recompute", prefix_cache=cached) as small:
            for _ in range(2):
                assert without_numbers(together(small, list(range(len(REQUESTS))))) == expected
            assert small.stats().preemptions
            assert small.stats().recomputed_tokens


def test_small_steps_change_nothing() -> None:
    with opened(prefix_cache=False) as llm:
        expected = alone(llm)
    with opened(prefix_cache=False, max_step_tokens=8, max_prefill_tokens=3) as small:
        assert together(small, list(range(len(REQUESTS)))) == expected


# -- seeds --------------------------------------------------------------------------------------------


def test_samples_of_a_seed_differ_and_do_not_depend_on_n(llm: LLM) -> None:
    many = llm.decode(PROMPT, Sample(n=8, seed=4), max_tokens=8, ignore_eos=True)
    assert len({c.token_ids for c in many.candidates}) == 8
    for n in (1, 3):
        few = llm.decode(PROMPT, Sample(n=n, seed=4), max_tokens=8, ignore_eos=True)
        assert [c.token_ids for c in few.candidates] == [c.token_ids for c in many.candidates[:n]]


def test_best_of_draws_what_sampling_draws(llm: LLM) -> None:
    drawn = llm.decode(PROMPT, Sample(n=6, seed=9), max_tokens=8)
    best = llm.decode(PROMPT, BestOf(best_of=6, n=6, seed=9), max_tokens=8)
    ranked = sorted(drawn.candidates, key=lambda c: -c.cumulative_logprob)
    assert [c.index for c in best.candidates] == [c.index for c in ranked]
    assert list(best.candidates) == ranked


def test_without_a_seed_each_request_has_its_own_and_says_it(llm: LLM) -> None:
    def run(strategy: Strategy) -> DecodeResult:
        return llm.decode(PROMPT, strategy, max_tokens=10, ignore_eos=True)

    for kind in (Sample(n=2), BestOf(best_of=2, n=2)):
        one, two = run(kind), run(kind)
        assert one.seed != two.seed
        assert outcome(one) != outcome(two)
        assert outcome(run(dataclasses.replace(kind, seed=one.seed))) == outcome(one)
    assert run(Greedy()).seed is None
    assert run(Beam()).seed is None


def test_every_seed_is_another(llm: LLM) -> None:
    seeds = [0, 1, 2, 2**31, 2**63, 2**64 - 1]
    results = [llm.decode(PROMPT, Sample(seed=s), max_tokens=8, ignore_eos=True).text for s in seeds]
    assert len(set(results)) == len(seeds)
