"""Options in concert, and what belongs to one strategy. That each option has its effect with each strategy is
shown by tests/matrix."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from forkdecode import (
    LLM,
    Beam,
    BestOf,
    Greedy,
    InvalidRequestError,
    Sample,
    Strategy,
)
from tests.llm.models import EOS_ID, STRATEGIES, TOKENIZER, VOCAB
from tests.matrix.rows import plain


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"temperature": 0.01}, False), ({"top_k": 1}, False), ({"top_p": 1e-6}, False),
        ({"min_p": 1.0}, False), ({"typical_p": 1e-6}, True),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize(
    "kind", [Sample(n=3, seed=3), BestOf(best_of=3, n=3, seed=3)], ids=["sample", "best_of"]
)
def test_narrowing_a_distribution(llm: LLM, kind: Strategy, changes: dict[str, float], same: bool) -> None:
    """Each of them, at its limit, leaves one token: all samples agree, and all but typical_p with greedy."""
    result = plain(llm, replace(kind, **changes))
    assert len({c.token_ids for c in result.candidates}) == 1
    if not same:
        assert result.candidates[0].token_ids == plain(llm, Greedy()).candidates[0].token_ids
    assert len({c.token_ids for c in plain(llm, kind).candidates}) == 3


def test_beams_return_what_is_asked_for(llm: LLM) -> None:
    everything = plain(llm, Beam(width=4)).candidates
    assert [c.index for c in everything] == [0, 1, 2, 3]
    assert sorted(everything, key=lambda c: -c.score) == list(everything)
    two = plain(llm, Beam(width=4, num_return_sequences=2)).candidates
    assert two == everything[:2]
    for c in everything:
        assert c.score == pytest.approx(c.selection_logprob / len(c.token_ids), rel=1e-6)
    patient = plain(llm, Beam(width=4, patience=2.0, early_stopping=True), ignore_eos=False)
    assert len(patient.candidates) <= 8


def test_a_beam_wider_than_the_vocabulary(llm: LLM) -> None:
    result = llm.decode([5, 6], Beam(width=2 * len(VOCAB)), max_tokens=2, ignore_eos=True)
    assert len(result.candidates) == 2 * len(VOCAB)
    assert len({c.token_ids for c in result.candidates}) == 2 * len(VOCAB)
    first = llm.decode([5, 6], Beam(width=2 * len(VOCAB)), max_tokens=1, ignore_eos=True)
    assert len(first.candidates) == len(VOCAB)


def test_more_returned_than_can_exist(llm: LLM) -> None:
    result = llm.decode([5], Beam(width=5), max_tokens=3, allowed_token_ids=[9], ignore_eos=True)
    assert [c.token_ids for c in result.candidates] == [(9, 9, 9)]


def test_stop_options_in_concert(llm: LLM) -> None:
    """min_tokens defers a stop string: the text goes on through it and ends at the next one."""
    for strategy in STRATEGIES.values():
        text = "a|b|c|"
        result = plain(llm, strategy, forced_prefix=text, stop="|", min_tokens=3)
        assert {c.text for c in result.candidates} == {"a|b"}
        assert {len(c.token_ids) for c in result.candidates} == {4}


def test_a_forced_prefix_that_nothing_allows_is_refused(llm: LLM) -> None:
    twice = [[VOCAB["a"]] * 2]
    for options in (
        {"allowed_token_ids": [1]},
        {"bad_words": [[VOCAB["a"]]]},
        {"bad_words": twice},
        {"max_tokens": 1},
    ):
        with pytest.raises(InvalidRequestError) as caught:
            plain(llm, Greedy(), forced_prefix="aa", **options)
        assert caught.value.field == "forced_prefix"


def test_a_forced_prefix_ends_nothing_before_its_last_token(llm: LLM) -> None:
    for strategy in STRATEGIES.values():
        ends = plain(llm, strategy, forced_prefix=[65, EOS_ID], ignore_eos=False)
        assert {(c.token_ids, c.finish_reason) for c in ends.candidates} == {((65, EOS_ID), "eos")}
        through = plain(llm, strategy, forced_prefix=[65, EOS_ID, 66], max_tokens=3)
        assert {c.token_ids for c in through.candidates} == {(65, EOS_ID, 66)}
        for options in (
            {"forced_prefix": [65, EOS_ID, 66], "ignore_eos": False},
            {"forced_prefix": [65, 9, 66], "stop_token_ids": [9]},
            {"forced_prefix": [65, EOS_ID], "ignore_eos": False, "min_tokens": 2},
        ):
            with pytest.raises(InvalidRequestError, match="ends a candidate there") as caught:
                plain(llm, strategy, **options)
            assert caught.value.field == "forced_prefix"


def test_scores_are_finite_whatever_the_length_penalty(llm: LLM) -> None:
    for penalty in (-100.0, -3.0, 0.0, 7.0, 100.0):
        for width in (1, 3):
            strategy = Beam(width=width, length_penalty=penalty)
            assert all(math.isfinite(c.score) for c in plain(llm, strategy).candidates)


def test_tokenizer_is_the_models(llm: LLM) -> None:
    assert llm.tokenizer is TOKENIZER


def test_what_options_act_on(llm: LLM) -> None:
    """Logits, and what is left is renormalised, or log-probabilities, with beams of more than one row."""

    def chosen(strategy: Strategy) -> float:
        result = llm.decode([5, 6], strategy, max_tokens=1, allowed_token_ids=[60])
        return result.candidates[0].score

    own = llm.decode([5, 6], Greedy(), max_tokens=1, allowed_token_ids=[60]).candidates[0]
    assert own.cumulative_logprob < -0.1
    assert own.selection_logprob == pytest.approx(0, abs=1e-6)
    assert chosen(Beam(1)) == pytest.approx(0, abs=1e-6)
    for strategy in (Beam(2), Beam(1, early_stopping=True, patience=2.0)):
        assert chosen(strategy) == pytest.approx(own.cumulative_logprob)
