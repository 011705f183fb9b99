"""Log-probabilities: what they add up to, and that they are the model's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from forkdecode import LLM, Candidate, Greedy, Sample, Strategy
from tests.llm.models import PROMPT, STRATEGIES, VOCAB, ids, tiny_llama

PROCESSED: dict[str, Any] = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.5,
    "logit_bias": {40: 2.0, 41: -3.0},
    "bad_words": [[7], [8, 9]],
    "no_repeat_ngram_size": 3,
    "min_tokens": 3,
}
REFERENCE = tiny_llama()


@torch.no_grad()
def own_logprobs(candidate: Candidate) -> torch.Tensor:
    """[g, V] log_softmax of the model's own logits at each step of the candidate."""
    prompt = ids(PROMPT)
    logits = REFERENCE(torch.tensor([[*prompt, *candidate.token_ids]])).logits[0]
    return torch.log_softmax(logits[len(prompt) - 1 : -1].double(), -1)


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
@pytest.mark.parametrize("options", [{}, PROCESSED], ids=["plain", "processed"])
def test_what_they_add_up_to(llm: LLM, strategy: Strategy, options: dict[str, Any]) -> None:
    result = llm.decode(PROMPT, strategy, max_tokens=10, logprobs=0, **options)
    for candidate in result.candidates:
        assert candidate.logprobs is not None
        raw = np.array([t.logprob for t in candidate.logprobs])
        assert candidate.cumulative_logprob == pytest.approx(raw.sum(), abs=1e-9)
        total = np.float32(0)
        for token in candidate.logprobs:
            total += np.float32(token.selection_logprob)
        assert candidate.selection_logprob == float(total)


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
@pytest.mark.parametrize("options", [{}, PROCESSED], ids=["plain", "processed"])
def test_raw_ones_are_the_models_own(llm: LLM, strategy: Strategy, options: dict[str, Any]) -> None:
    result = llm.decode(PROMPT, strategy, max_tokens=10, logprobs=5, **options)
    for candidate in result.candidates:
        own = own_logprobs(candidate)
        for step, token in enumerate(candidate.logprobs or ()):
            assert token.logprob == pytest.approx(float(own[step, token.token_id]), abs=1e-4)
            best = own[step].topk(5)
            assert [t for t, _ in token.top] == best.indices.tolist()
            assert [v for _, v in token.top] == pytest.approx(best.values.tolist(), abs=1e-4)


@pytest.mark.parametrize("name", ["beam", "beam of 1", "greedy"])
def test_without_processors_raw_and_processed_agree(llm: LLM, name: str) -> None:
    for candidate in llm.decode(PROMPT, STRATEGIES[name], max_tokens=8, logprobs=3).candidates:
        for token in candidate.logprobs or ():
            assert token.selection_logprob == pytest.approx(token.logprob, abs=1e-5)
            assert [t for t, _ in token.top] == [t for t, _ in token.top_processed]


def test_draws_report_the_distribution_drawn_from(llm: LLM) -> None:
    strategy = Sample(n=4, seed=5, temperature=0.7, top_k=6)
    result = llm.decode(PROMPT, strategy, max_tokens=6, logprobs=10, logit_bias={40: 4.0}, ignore_eos=True)
    for candidate in result.candidates:
        own = own_logprobs(candidate)
        own[:, 40] += 4.0
        for step, token in enumerate(candidate.logprobs or ()):
            best = (own[step] / 0.7).topk(6)
            expected = torch.log_softmax(best.values, -1).tolist()
            found = dict(token.top_processed)
            assert list(found) == best.indices.tolist()
            assert list(found.values()) == pytest.approx(expected, abs=1e-4)
            assert token.selection_logprob == pytest.approx(found[token.token_id], abs=1e-6)


def test_beams_report_log_softmax_after_processors_not_renormalised(llm: LLM) -> None:
    result = llm.decode(
        PROMPT, STRATEGIES["beam"], max_tokens=6, logprobs=2, logit_bias={40: 3.0}, ignore_eos=True
    )
    for candidate in result.candidates:
        own = own_logprobs(candidate)
        own[:, 40] += 3.0
        for step, token in enumerate(candidate.logprobs or ()):
            assert token.selection_logprob == pytest.approx(float(own[step, token.token_id]), abs=1e-4)
            assert [t for t, _ in token.top_processed] == own[step].topk(2).indices.tolist()


def test_what_is_masked_is_in_no_list(llm: LLM) -> None:
    for strategy in STRATEGIES.values():
        result = llm.decode(PROMPT, strategy, max_tokens=3, logprobs=1024, allowed_token_ids=[50, 51, 52])
        for candidate in result.candidates:
            for token in candidate.logprobs or ():
                assert len(token.top) == len(VOCAB)
                assert {t for t, _ in token.top_processed} == {50, 51, 52}


def test_deltas_carry_those_of_the_result(llm: LLM) -> None:
    for name in ("greedy", "sample", "best_of"):
        streamed: dict[int, list[Any]] = {}
        for event in llm.stream(PROMPT, STRATEGIES[name], max_tokens=6, logprobs=2):
            kind = type(event).__name__
            if kind == "Delta":
                streamed.setdefault(event.candidate, []).extend(event.logprobs or ())
            elif kind == "Finished":
                for candidate in event.result.candidates:
                    assert tuple(streamed[candidate.index]) == candidate.logprobs


def test_greedy_is_the_models_own_argmax(llm: LLM) -> None:
    candidate = llm.decode(PROMPT, Greedy(), max_tokens=20, ignore_eos=True).candidates[0]
    assert candidate.token_ids == tuple(own_logprobs(candidate).argmax(-1).tolist())
