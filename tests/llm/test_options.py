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
    StochasticBeam,
    Strategy,
)
<<<<<<< HEAD
from forkdecode.types import BEAMS, OPTION_NAMES
from tests.llm.models import EOS_ID, PROMPT, STRATEGIES, TOKENIZER, VOCAB, ids, outcome, text_of

Check = Callable[[LLM, Strategy], None]
MAX = 12
CHECKS: dict[str, Check] = {}


def option(check: Check) -> Check:
    CHECKS[check.__name__] = check
    return check


def plain(llm: LLM, strategy: Strategy, **options: Any) -> DecodeResult:
    return llm.decode(PROMPT, strategy, **{"max_tokens": MAX, "ignore_eos": True, **options})


def generated(result: DecodeResult) -> list[tuple[int, ...]]:
    return [c.token_ids for c in result.candidates]


def ngrams(tokens: tuple[int, ...], n: int) -> list[tuple[int, ...]]:
    return [tokens[i : i + n] for i in range(len(tokens) - n + 1)]


@option
def max_tokens(llm: LLM, strategy: Strategy) -> None:
    for limit in (1, 5):
        result = plain(llm, strategy, max_tokens=limit)
        assert {len(t) for t in generated(result)} == {limit}
        assert {c.finish_reason for c in result.candidates} == {"length"}


@option
def min_tokens(llm: LLM, strategy: Strategy) -> None:
    wants_eos = {"logit_bias": {EOS_ID: 30.0}, "ignore_eos": False}
    early = plain(llm, strategy, **wants_eos)
    assert generated(early)[0] == (EOS_ID,)
    late = plain(llm, strategy, min_tokens=4, **wants_eos)
    assert all(len(t) >= 5 and EOS_ID not in t[:4] for t in generated(late))
    assert generated(late)[0][-1] == EOS_ID


@option
def stop(llm: LLM, strategy: Strategy) -> None:
    text = plain(llm, strategy, forced_prefix="say: wo", stop="y: w")
    assert {c.text for c in text.candidates} == {"sa"}
    assert {c.finish_reason for c in text.candidates} == {"stop"}
    assert all(text_of(t) == "say: w" for t in generated(text))


@option
def include_stop(llm: LLM, strategy: Strategy) -> None:
    result = plain(llm, strategy, forced_prefix="say: hello", stop=["y: he", "zz"], include_stop=True)
    assert {c.text for c in result.candidates} == {"say: he"}
    assert all(text_of(t) == "say: hello" for t in generated(result))  # "hello" is one token


@option
def stop_token_ids(llm: LLM, strategy: Strategy) -> None:
    token = VOCAB["hello"]
    result = plain(llm, strategy, forced_prefix="ab hello", stop_token_ids=[token, 5])
    assert {c.finish_reason for c in result.candidates} == {"stop"}
    assert {t[-1] for t in generated(result)} == {token}
    assert {c.text for c in result.candidates} == {"ab "}


@option
def ignore_eos(llm: LLM, strategy: Strategy) -> None:
    bias = {EOS_ID: 40.0}
    assert generated(plain(llm, strategy, logit_bias=bias))[0] == (EOS_ID,) * MAX
    ends = plain(llm, strategy, logit_bias=bias, ignore_eos=False)
    assert ends.candidates[0].token_ids == (EOS_ID,)
    assert ends.candidates[0].finish_reason == "eos"
    assert ends.candidates[0].text == ""


@option
def repetition_penalty(llm: LLM, strategy: Strategy) -> None:
    # 65 is worth 1000 and 66 is worth 600, until the penalty halves what has been generated.
    two = {"logit_bias": {65: 1000.0, 66: 600.0}, "max_tokens": 6}
    assert generated(plain(llm, strategy, **two))[0] == (65,) * 6
    penalised = generated(plain(llm, strategy, repetition_penalty=2.0, **two))[0]
    assert sorted(penalised) == [65] * 5 + [66]
    assert penalised[0] == 65


@option
def presence_penalty(llm: LLM, strategy: Strategy) -> None:
    varied = plain(llm, strategy, presence_penalty=100.0, allowed_token_ids=range(60, 72))
    assert all(len(set(t)) == MAX for t in generated(varied))


@option
def frequency_penalty(llm: LLM, strategy: Strategy) -> None:
    level = plain(llm, strategy, frequency_penalty=100.0, allowed_token_ids=[60, 61, 62])
    assert all(t.count(x) == MAX // 3 for t in generated(level) for x in (60, 61, 62))


@option
def no_repeat_ngram_size(llm: LLM, strategy: Strategy) -> None:
    result = plain(llm, strategy, no_repeat_ngram_size=2, allowed_token_ids=[60, 61, 62, 63])
    for tokens in generated(result):
        grams = ngrams(ids(PROMPT) + tokens, 2)
        assert len(grams) == len(set(grams))


@option
def logit_bias(llm: LLM, strategy: Strategy) -> None:
    result = plain(llm, strategy, logit_bias={77: 1e3})
    assert generated(result)[0] == (77,) * MAX
    banned = generated(plain(llm, strategy))[0][0]
    assert all(banned not in t for t in generated(plain(llm, strategy, logit_bias={banned: -1e4})))


@option
def bad_words(llm: LLM, strategy: Strategy) -> None:
    first = generated(plain(llm, strategy))[0]
    result = plain(llm, strategy, bad_words=[[first[0]], list(first[1:3])])
    for tokens in generated(result):
        assert first[0] not in tokens
        assert tuple(first[1:3]) not in ngrams(tokens, 2)
    steered = {"logit_bias": {VOCAB["hello"]: 50.0}, "max_tokens": 3}
    assert all("hello" in c.text for c in plain(llm, strategy, **steered).candidates)
    assert all("hello" not in c.text for c in plain(llm, strategy, bad_words=["hello"], **steered).candidates)


@option
def allowed_token_ids(llm: LLM, strategy: Strategy) -> None:
    allowed = {70, 71, 80}
    assert all(set(t) <= allowed for t in generated(plain(llm, strategy, allowed_token_ids=list(allowed))))


@option
def forced_prefix(llm: LLM, strategy: Strategy) -> None:
    for prefix in ("Grüße, 世", ids("abc")):
        wanted = ids(prefix) if isinstance(prefix, str) else prefix
        result = plain(llm, strategy, forced_prefix=prefix, max_tokens=len(wanted) + 2)
        assert all(t[: len(wanted)] == wanted for t in generated(result))


@option
def logprobs(llm: LLM, strategy: Strategy) -> None:
    without = plain(llm, strategy)
    for k in (0, 3, 1024):
        result = plain(llm, strategy, logprobs=k)
        assert outcome(result) == outcome(without)
        for candidate in result.candidates:
            assert candidate.logprobs is not None
            assert tuple(t.token_id for t in candidate.logprobs) == candidate.token_ids
            assert {len(t.top) for t in candidate.logprobs} == {min(k, len(VOCAB))}
    assert all(c.logprobs is None for c in without.candidates)


@option
def priority(llm: LLM, strategy: Strategy) -> None:
    assert outcome(plain(llm, strategy, priority=5)) == outcome(plain(llm, strategy, priority=-5))


@option
def cache_salt(llm: LLM, strategy: Strategy) -> None:
    mark = str(list(STRATEGIES.values()).index(strategy)) * 4  # no block in common with another cell
    for salt, hit in (("a", False), ("a", True), ("b", False)):
        result = llm.decode(mark + PROMPT, strategy, max_tokens=2, cache_salt=salt)
        assert (result.usage.cached_tokens > 0) == hit


def updates(llm: LLM, strategy: Strategy, **options: Any) -> list[BeamUpdate]:
    given: dict[str, Any] = {"max_tokens": MAX, "ignore_eos": True, **options}
    events = list(llm.stream(PROMPT, strategy, **given))
    assert isinstance(events[-1], Finished)
    assert outcome(events[-1].result) == outcome(plain(llm, strategy))
    return [event for event in events if isinstance(event, BeamUpdate)]


def of_beams_alone(llm: LLM, strategy: Strategy, name: str) -> bool:
    """Whether the strategy is a beam; that another one refuses the option, but not its default."""
    if isinstance(strategy, BEAMS):
        return True
    assert not updates(llm, strategy, **{name: 1})
    for call in (llm.decode, llm.submit, llm.stream):
        for value in (0, 2):
            with pytest.raises(InvalidRequestError, match=f"{name}: {value} is of beams alone") as caught:
                call(PROMPT, strategy, **{name: value})  # type: ignore[arg-type, operator]
            assert caught.value.field == name
    return False


@option
def update_every(llm: LLM, strategy: Strategy) -> None:
    if of_beams_alone(llm, strategy, "update_every"):
        for every in (1, 5, MAX - 1, MAX):
            found = updates(llm, strategy, update_every=every)
            assert [update.generated_tokens for update in found] == list(range(every, MAX, every))
        assert not updates(llm, strategy, update_every=0)


@option
def update_beams(llm: LLM, strategy: Strategy) -> None:
    if of_beams_alone(llm, strategy, "update_beams"):
        assert isinstance(strategy, (Beam, StochasticBeam))
        for beams, shown in ((1, 1), (2, min(2, strategy.width)), (0, strategy.width), (99, strategy.width)):
            assert {len(u.beams) for u in updates(llm, strategy, update_beams=beams)} == {shown}


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_every_option_with_every_strategy(llm: LLM, check: Check, strategy: Strategy) -> None:
    check(llm, strategy)


def test_no_option_is_left_out() -> None:
    assert sorted(CHECKS) == sorted(OPTION_NAMES)


# -- what belongs to one strategy ---------------------------------------------------------------------
=======
from tests.llm.models import EOS_ID, STRATEGIES, TOKENIZER, VOCAB
from tests.matrix.rows import plain
>>>>>>> 94ed212 (wip)


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
    for options in ({"allowed_token_ids": [1]}, {"bad_words": [[VOCAB["a"]]]}, {"max_tokens": 1}):
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
