"""score(): log-likelihoods of continuations against transformers' own forward pass."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from forkdecode import (
    LLM,
    AsyncLLM,
    CancelledError,
    CapacityError,
    Greedy,
    GroupFailedError,
    InvalidRequestError,
    Sample,
    ScoreResult,
)
from tests.llm.models import EOS_ID, PROMPT, TOKENIZER, VOCAB, assert_idle, ids, opened, tiny_llama
from tests.models import FAMILIES, WINDOW, tiny_model
from tests.models import VOCAB as FAMILY_VOCAB

REFERENCE = tiny_llama()
TOLERANCE = 1e-4
CONTINUATIONS = ["hello world", "a", [3, 4, 5, 6, 7, 8, 9, 10], "a", " zzz yyy, xxx?", [EOS_ID]]


@torch.no_grad()
def own_logprobs(model: PreTrainedModel, prompt: Sequence[int], continuation: Sequence[int]) -> torch.Tensor:
    """[n, V] log_softmax of the model's logits before each token of the continuation."""
    logits = model(torch.tensor([[*prompt, *continuation]])).logits[0]
    return torch.log_softmax(logits[len(prompt) - 1 : -1].double(), -1)


def gap(model: PreTrainedModel, result: ScoreResult) -> float:
    """The largest difference of any token's log-probability from the model's own."""
    worst = 0.0
    for scored in result.continuations:
        own = own_logprobs(model, result.prompt_token_ids, scored.token_ids)
        want = own[torch.arange(len(own)), torch.tensor(scored.token_ids)].numpy()
        got = np.array([t.logprob for t in scored.logprobs])
        worst = max(worst, float(np.abs(got - want).max()))
        assert [t.token_id for t in scored.logprobs] == list(scored.token_ids)
        assert scored.cumulative_logprob == pytest.approx(got.sum(), abs=1e-9)
        assert scored.mean_logprob == pytest.approx(got.mean(), abs=1e-9)
    return worst


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str) -> None:
    """Prompts within and beyond the sliding windows, and continuations that leave them."""
    rng = np.random.default_rng(5)
    oracle = tiny_model(family)
    with opened(tiny_model(family), tokenizer=None, block_size=8) as llm:
        for length in (1, 9, 3 * WINDOW + 5):
            prompt = rng.integers(0, FAMILY_VOCAB, length).tolist()
            continuations = [rng.integers(0, FAMILY_VOCAB, n).tolist() for n in (1, 4, 4, 2 * WINDOW, 11)]
            found = gap(oracle, llm.score(prompt, continuations))
            assert found < TOLERANCE, (family, length, found)


@settings(max_examples=25)
@given(
    prompt=st.lists(st.integers(0, len(VOCAB) - 1), min_size=1, max_size=40),
    continuations=st.lists(
        st.lists(st.integers(0, len(VOCAB) - 1), min_size=1, max_size=30), min_size=1, max_size=5
    ),
)
def test_any_lengths(shared_llm: LLM, prompt: list[int], continuations: list[list[int]]) -> None:
    result = shared_llm.score(prompt, continuations)
    assert [list(c.token_ids) for c in result.continuations] == continuations
    assert gap(REFERENCE, result) < TOLERANCE
    assert_idle(shared_llm)


def test_what_is_reported(llm: LLM) -> None:
    result = llm.score(PROMPT, CONTINUATIONS, top_logprobs=3, request_id="mine")
    assert result.request_id == "mine"
    assert result.prompt_token_ids == ids(PROMPT)
    assert [c.index for c in result.continuations] == list(range(6))
    assert [c.text for c in result.continuations] == [
        "hello world",
        "a",
        "$%&'()*+",
        "a",
        " zzz yyy, xxx?",
        "",
    ]
    assert result.continuations[1].logprobs == result.continuations[3].logprobs
    assert result.usage.prompt_tokens == len(ids(PROMPT))
    assert result.usage.generated_tokens == sum(len(c.token_ids) for c in result.continuations)
    assert gap(REFERENCE, result) < TOLERANCE
    for scored in result.continuations:
        own = own_logprobs(REFERENCE, result.prompt_token_ids, scored.token_ids)
        for step, token in enumerate(scored.logprobs):
            best = own[step].topk(3)
            assert [t for t, _ in token.top] == best.indices.tolist()
            assert [v for _, v in token.top] == pytest.approx(best.values.tolist(), abs=TOLERANCE)
            assert token.top_processed == token.top
            assert token.selection_logprob == token.logprob


def test_agrees_with_what_decoding_reports(llm: LLM) -> None:
    decoded = llm.decode(PROMPT, Sample(n=4, seed=3), max_tokens=12, logprobs=0)
    scored = llm.score(PROMPT, [c.token_ids for c in decoded.candidates])
    for one, candidate in zip(scored.continuations, decoded.candidates, strict=True):
        assert one.cumulative_logprob == pytest.approx(candidate.cumulative_logprob, abs=TOLERANCE)
        for a, b in zip(one.logprobs, candidate.logprobs or (), strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=TOLERANCE)


@pytest.mark.parametrize(
    "config",
    [
        {"prefix_cache": False},
        {"max_step_tokens": 5},
        {"max_step_tokens": 16, "max_prefill_tokens": 3},
        {"block_size": 1},
        {"block_size": 128},
    ],
    ids=str,
)
def test_whatever_the_engine(llm: LLM, config: dict[str, Any]) -> None:
    want = llm.score(PROMPT, CONTINUATIONS)
    with opened(**{"block_size": 4, **config}) as other:
        for result in (other.score(PROMPT, CONTINUATIONS), other.score(PROMPT, CONTINUATIONS)):
            for a, b in zip(result.continuations, want.continuations, strict=True):
                assert a.cumulative_logprob == pytest.approx(b.cumulative_logprob, abs=TOLERANCE)


def test_company_changes_nothing_but_the_last_bits() -> None:
    with opened(block_size=4, max_prefill_tokens=16) as llm:
        alone = llm.score(PROMPT, CONTINUATIONS)
        crowd = [llm.submit(PROMPT, Sample(n=3, seed=s), max_tokens=40, ignore_eos=True) for s in range(3)]
        result = llm.score(PROMPT, CONTINUATIONS)
        for handle in crowd:
            handle.cancel()
    pairs = zip(alone.continuations, result.continuations, strict=True)
    gaps = [abs(a.cumulative_logprob - b.cumulative_logprob) for a, b in pairs]
    assert max(gaps) < TOLERANCE, gaps


def test_repeats_bit_for_bit() -> None:
    """In the same company, here none, whether the prompt is in the prefix cache or not."""
    with opened(block_size=4, prefix_cache=False) as llm:
        first, second = llm.score(PROMPT, CONTINUATIONS), llm.score(PROMPT, CONTINUATIONS)
    assert first.continuations == second.continuations


def test_logits_in_pieces(monkeypatch: pytest.MonkeyPatch, llm: LLM) -> None:
    """More rows than the head's byte bound lets through at once."""
    want = llm.score(PROMPT, CONTINUATIONS, top_logprobs=2)
    monkeypatch.setattr("forkdecode.model.head.MAX_LOGITS_BYTES", 2 * 4 * len(VOCAB))
    with opened(block_size=4) as other:
        result = other.score(PROMPT, CONTINUATIONS, top_logprobs=2)
    for a, b in zip(result.continuations, want.continuations, strict=True):
        assert a.cumulative_logprob == pytest.approx(b.cumulative_logprob, abs=TOLERANCE)
        assert [[t for t, _ in x.top] for x in a.logprobs] == [[t for t, _ in x.top] for x in b.logprobs]


def test_the_prompt_is_stored_once(llm: LLM) -> None:
    prompt = [i % 200 for i in range(101)]
    result = llm.score(prompt, [[i, i + 1, i + 2] for i in range(32)])
    assert result.usage.peak_unique_blocks <= 25 + 32 * 2
    assert result.usage.peak_unshared_blocks > 32 * 25
    again = llm.score(prompt, [[1]])
    assert again.usage.cached_tokens == 100


def test_chat_and_priority_and_salt(llm: LLM) -> None:
    result = llm.score("hi", ["yes", "no"], chat=True, priority=3, cache_salt="mine")
    rendered = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert result.prompt_token_ids == ids(str(rendered))
    messages = [{"role": "user", "content": "hi"}]
    same = llm.score(messages, ["yes", "no"])
    assert same.prompt_token_ids == result.prompt_token_ids
    assert gap(REFERENCE, result) < TOLERANCE


def test_a_list_of_prompts_is_scored_at_once(llm: LLM) -> None:
    prompts: list[Any] = [PROMPT, [5, 6, 7], "hi"]
    before = llm.stats().steps
    found = llm.score(prompts, ["a", [7, 8]], request_id=["x", "y", "z"])
    assert llm.stats().steps - before <= 2
    assert [result.request_id for result in found] == ["x", "y", "z"]
    own = llm.score(prompts, [["a"], [[7, 8], "b"], ["c"]])
    assert [len(result.continuations) for result in own] == [1, 2, 1]
    for prompt, results in zip(prompts, zip(found, own, strict=True), strict=True):
        for result in results:
            assert result.prompt_token_ids == llm.tokenize(prompt)
            assert gap(REFERENCE, result) < TOLERANCE
    assert llm.score([], ["a"]) == []
    for wrong, told in (
        ({"prompt": ["a", ""]}, r"prompt: .* \(prompt 2 of 2\)"),
        ({"continuations": [["a"], ["b"], ["c"]]}, r"continuations: are 3 lists for 2 prompts; allowed: "),
        ({"continuations": [["a"], []]}, r"continuations: are 0; .* \(prompt 2 of 2\)"),
        ({"request_id": "one"}, r"request_id: is one for a list"),
    ):
        with pytest.raises(InvalidRequestError, match=told):
            llm.score(**{"prompt": ["a", "b"], "continuations": ["a"], **wrong})


LIMIT = 512
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"continuations": []}, "continuations"),
    "a text": ({"continuations": "abc"}, "continuations"),
    "a number": ({"continuations": 5}, "continuations"),
    "an empty text": ({"continuations": ["a", ""]}, "continuations"),
    "an empty list": ({"continuations": [[1], []]}, "continuations"),
    "numbers": ({"continuations": [1, 2]}, "continuations"),
    "beyond the vocabulary": ({"continuations": [[len(VOCAB)]]}, "continuations"),
    "negative": ({"continuations": [[-1]]}, "continuations"),
    "a surrogate": ({"continuations": ["a\ud800"]}, "continuations"),
    "a boolean": ({"continuations": [[True]]}, "continuations"),
    "too long": ({"continuations": [[1] * (LIMIT - len(ids(PROMPT)) + 1)]}, "continuations"),
    "too many": ({"continuations": [[1]] * 65_537}, "continuations"),
    "no prompt": ({"prompt": ""}, "prompt"),
    "a long prompt": ({"prompt": [1] * LIMIT}, "prompt"),
    "top": ({"top_logprobs": 1025}, "top_logprobs"),
    "negative top": ({"top_logprobs": -1}, "top_logprobs"),
    "no top": ({"top_logprobs": None}, "top_logprobs"),
    "chat": ({"chat": 1}, "chat"),
    "chat of ids": ({"chat": True, "prompt": [1, 2]}, "chat"),
    "priority": ({"priority": 2**31}, "priority"),
    "salt": ({"cache_salt": 3}, "cache_salt"),
    "empty id": ({"request_id": ""}, "request_id"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused(llm: LLM, name: str) -> None:
    wrong, field = WRONG[name]
    steps = llm.stats().steps
    with pytest.raises(InvalidRequestError) as caught:
        llm.score(**{"prompt": PROMPT, "continuations": ["a"], **wrong})
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
    assert "allowed: " in str(caught.value)
    assert len(str(caught.value)) < 400
    assert llm.stats().steps == steps


def test_the_longest_that_fits(llm: LLM) -> None:
    room = LIMIT - len(ids(PROMPT))
    result = llm.score(PROMPT, [[5] * room, [6]])
    assert len(result.continuations[0].logprobs) == room
    assert gap(REFERENCE, result) < TOLERANCE


def test_texts_need_a_tokenizer() -> None:
    with opened(tokenizer=None) as llm:
        with pytest.raises(InvalidRequestError) as caught:
            llm.score([1, 2, 3], ["a"])
        assert caught.value.field == "continuations"
        assert len(llm.score([1, 2, 3], [[4, 5]]).continuations[0].logprobs) == 2


def test_too_big_for_the_pool() -> None:
    with opened(num_blocks=40, block_size=4) as llm, pytest.raises(CapacityError) as caught:
        llm.score(PROMPT, [[i] * 8 for i in range(20)], request_id="big")
    assert caught.value.field == "continuations"
    assert caught.value.request_id == "big"


def test_a_broken_model_fails_the_request_with_its_name() -> None:
    def poison(model: Any) -> None:
        model.model.embed_tokens.weight[40] = float("nan")

    with opened(tiny_llama(prepare=poison), block_size=4) as llm:
        with pytest.raises(GroupFailedError, match="non-finite") as caught:
            llm.score([1, 2, 3], [[4, 5, 40, 6, 7], [8]], request_id="bad")
        assert caught.value.request_id == "bad"
        assert len(llm.score([1, 2, 3], [[4, 5]]).continuations) == 1


def test_from_a_coroutine() -> None:
    asyncio.run(asyncio.wait_for(from_a_coroutine(), 120))


async def from_a_coroutine() -> None:
    async with AsyncLLM(tiny_llama(), tokenizer=TOKENIZER, num_blocks=4096, threads=1, block_size=4) as llm:
        results = await asyncio.gather(*(llm.score(PROMPT, CONTINUATIONS, top_logprobs=n) for n in range(4)))
        for result in results:
            assert gap(REFERENCE, result) < TOLERANCE
        for result in await llm.score([PROMPT, "hi"], CONTINUATIONS):
            assert gap(REFERENCE, result) < TOLERANCE
        with pytest.raises(InvalidRequestError):
            await llm.score(PROMPT, [])
        assert (await llm.decode(PROMPT, Greedy(), max_tokens=2)).candidates
        task = asyncio.create_task(llm.score(PROMPT, [[1] * 400] * 20))
        while (await llm.stats()).running_groups == 0 and not task.done():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises((asyncio.CancelledError, CancelledError)):
            await task
        while (await llm.stats()).running_groups:
            await asyncio.sleep(0)
        stats = await llm.stats()
        assert stats.used_blocks == 0
