"""Rows of the options that every strategy takes."""

from __future__ import annotations

import itertools
from typing import Any

from forkdecode import BeamUpdate, Finished, Strategy
from tests.llm.models import EOS_ID, PROMPT, VOCAB, ids, outcome, text_of
from tests.matrix.rows import BEAMS, MAX, STRATEGIES, Decoder, Refusal, Row, generated, ngrams, plain

SALTS = itertools.count()


def max_tokens(llm: Decoder, strategy: Strategy) -> None:
    for limit in (1, 5):
        result = plain(llm, strategy, max_tokens=limit)
        assert {len(t) for t in generated(result)} == {limit}
        assert {c.finish_reason for c in result.candidates} == {"length"}


def min_tokens(llm: Decoder, strategy: Strategy) -> None:
    wants_eos = {"logit_bias": {EOS_ID: 30.0}, "ignore_eos": False}
    early = plain(llm, strategy, **wants_eos)
    assert generated(early)[0] == (EOS_ID,)
    late = plain(llm, strategy, min_tokens=4, **wants_eos)
    assert all(len(t) >= 5 and EOS_ID not in t[:4] for t in generated(late))
    assert generated(late)[0][-1] == EOS_ID


def stop(llm: Decoder, strategy: Strategy) -> None:
    text = plain(llm, strategy, forced_prefix="say: wo", stop="y: w")
    assert {c.text for c in text.candidates} == {"sa"}
    assert {c.finish_reason for c in text.candidates} == {"stop"}
    assert all(text_of(t) == "say: w" for t in generated(text))


def include_stop(llm: Decoder, strategy: Strategy) -> None:
    result = plain(llm, strategy, forced_prefix="say: hello", stop=["y: he", "zz"], include_stop=True)
    assert {c.text for c in result.candidates} == {"say: he"}
    assert all(text_of(t) == "say: hello" for t in generated(result))  # "hello" is one token


def stop_token_ids(llm: Decoder, strategy: Strategy) -> None:
    token = VOCAB["hello"]
    result = plain(llm, strategy, forced_prefix="ab hello", stop_token_ids=[token, 5])
    assert {c.finish_reason for c in result.candidates} == {"stop"}
    assert {t[-1] for t in generated(result)} == {token}
    assert {c.text for c in result.candidates} == {"ab "}


def ignore_eos(llm: Decoder, strategy: Strategy) -> None:
    bias = {EOS_ID: 40.0}
    assert generated(plain(llm, strategy, logit_bias=bias))[0] == (EOS_ID,) * MAX
    ends = plain(llm, strategy, logit_bias=bias, ignore_eos=False)
    assert ends.candidates[0].token_ids == (EOS_ID,)
    assert ends.candidates[0].finish_reason == "eos"
    assert ends.candidates[0].text == ""


def repetition_penalty(llm: Decoder, strategy: Strategy) -> None:
    # 65 is worth 1000 and 66 is worth 600, until the penalty halves what has been generated.
    two = {"logit_bias": {65: 1000.0, 66: 600.0}, "max_tokens": 6}
    assert generated(plain(llm, strategy, **two))[0] == (65,) * 6
    penalised = generated(plain(llm, strategy, repetition_penalty=2.0, **two))[0]
    assert sorted(penalised) == [65] * 5 + [66]
    assert penalised[0] == 65


def presence_penalty(llm: Decoder, strategy: Strategy) -> None:
    varied = plain(llm, strategy, presence_penalty=100.0, allowed_token_ids=range(60, 72))
    assert all(len(set(t)) == MAX for t in generated(varied))


def frequency_penalty(llm: Decoder, strategy: Strategy) -> None:
    level = plain(llm, strategy, frequency_penalty=100.0, allowed_token_ids=[60, 61, 62])
    assert all(t.count(x) == MAX // 3 for t in generated(level) for x in (60, 61, 62))


def no_repeat_ngram_size(llm: Decoder, strategy: Strategy) -> None:
    result = plain(llm, strategy, no_repeat_ngram_size=2, allowed_token_ids=[60, 61, 62, 63])
    for tokens in generated(result):
        grams = ngrams(ids(PROMPT) + tokens, 2)
        assert len(grams) == len(set(grams))


def logit_bias(llm: Decoder, strategy: Strategy) -> None:
    result = plain(llm, strategy, logit_bias={77: 1e3})
    assert generated(result)[0] == (77,) * MAX
    banned = generated(plain(llm, strategy))[0][0]
    assert all(banned not in t for t in generated(plain(llm, strategy, logit_bias={banned: -1e4})))


def bad_words(llm: Decoder, strategy: Strategy) -> None:
    first = generated(plain(llm, strategy))[0]
    result = plain(llm, strategy, bad_words=[[first[0]], list(first[1:3])])
    for tokens in generated(result):
        assert first[0] not in tokens
        assert tuple(first[1:3]) not in ngrams(tokens, 2)
    steered = {"logit_bias": {VOCAB["hello"]: 50.0}, "max_tokens": 3}
    assert "hello" in plain(llm, strategy, **steered).candidates[0].text
    assert all("hello" not in c.text for c in plain(llm, strategy, bad_words=["hello"], **steered).candidates)


def allowed_token_ids(llm: Decoder, strategy: Strategy) -> None:
    allowed = {70, 71, 80}
    assert all(set(t) <= allowed for t in generated(plain(llm, strategy, allowed_token_ids=list(allowed))))


def forced_prefix(llm: Decoder, strategy: Strategy) -> None:
    for prefix in ("Grüße, 世", ids("abc")):
        wanted = ids(prefix) if isinstance(prefix, str) else prefix
        result = plain(llm, strategy, forced_prefix=prefix, max_tokens=len(wanted) + 2)
        assert all(t[: len(wanted)] == wanted for t in generated(result))


def logprobs(llm: Decoder, strategy: Strategy) -> None:
    without = plain(llm, strategy)
    for k in (0, 1024):
        result = plain(llm, strategy, logprobs=k)
        assert outcome(result) == outcome(without)
        for candidate in result.candidates:
            assert candidate.logprobs is not None
            assert tuple(t.token_id for t in candidate.logprobs) == candidate.token_ids
            assert {len(t.top) for t in candidate.logprobs} == {min(k, len(VOCAB))}
            total = sum(t.logprob for t in candidate.logprobs)
            assert abs(total - candidate.cumulative_logprob) < 1e-3
    assert all(c.logprobs is None for c in without.candidates)


def priority(llm: Decoder, strategy: Strategy) -> None:
    """What is decoded does not depend on it; that it goes first is the scheduler's own test."""
    assert outcome(plain(llm, strategy, priority=5)) == outcome(plain(llm, strategy, priority=-5))


def cache_salt(llm: Decoder, strategy: Strategy) -> None:
    mark = next(SALTS)
    for salt, hit in (("a", False), ("a", True), ("b", False)):
        result = llm.decode(PROMPT, strategy, max_tokens=2, cache_salt=f"{mark} {salt}")
        assert (result.usage.cached_tokens > 0) == hit


def updates(llm: Decoder, strategy: Strategy, **options: Any) -> list[BeamUpdate]:
    given: dict[str, Any] = {"max_tokens": MAX, "ignore_eos": True, **options}
    events = list(llm.stream(PROMPT, strategy, **given))
    assert isinstance(events[-1], Finished)
    return [event for event in events if isinstance(event, BeamUpdate)]


def update_every(llm: Decoder, strategy: Strategy) -> None:
    for every in (2, MAX):
        found = updates(llm, strategy, update_every=every)
        assert [update.generated_tokens for update in found] == list(range(every, MAX, every))
    assert not updates(llm, strategy, update_every=0)
    assert updates(llm, strategy, update_every=1)


def update_beams(llm: Decoder, strategy: Any) -> None:
    found = updates(llm, strategy, update_beams=2)
    assert {len(u.beams) for u in found} == {min(2, strategy.width)}
    for beams in (0, 99):
        assert {len(u.beams) for u in updates(llm, strategy, update_beams=beams)} == {strategy.width}


def _beams_alone(name: str) -> dict[str, Refusal]:
    others = [strategy for strategy in STRATEGIES if strategy not in BEAMS]
    return dict.fromkeys(
        others, Refusal(name, "It sets how live beams are shown, which other strategies do not have")
    )


ROWS = [
    *(
        Row(check.__name__, check)
        for check in (
            max_tokens, min_tokens, stop, stop_token_ids, include_stop, ignore_eos, repetition_penalty,
            presence_penalty, frequency_penalty, no_repeat_ngram_size, logit_bias, bad_words,
            allowed_token_ids, forced_prefix, logprobs, priority, cache_salt,
        )
    ),
    Row("update_every", update_every, refused=_beams_alone("update_every")),
    Row("update_beams", update_beams, refused=_beams_alone("update_beams")),
]  # fmt: skip
