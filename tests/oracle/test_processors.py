"""Logits options with greedy search and beams, against `generate` and against plain loops.

`generate` has no presence or frequency penalty, and no forced prefix (which leaves a beam one legal
candidate, where it is arbitrary): the plain loops alone decide there. It never bans an EOS id given
as a bad word of its own; the engine does, so no such word is drawn when comparing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode import Beam, Options
from tests.oracle.engines import Case, Pair, hypotheses, paired
from tests.oracle.generation import generate
from tests.oracle.test_random_models import generate_is_defined, random_llama
from tests.oracle.verdict import assert_same

VOCAB = 40
EOS = frozenset({3, 17})
TOKENS = st.integers(0, VOCAB - 1)
WORDS = (
    st.lists(TOKENS, min_size=1, max_size=3).map(tuple).filter(lambda w: not (len(w) == 1 and w[0] in EOS))
)
SHARED: dict[str, st.SearchStrategy[Any]] = {
    "repetition_penalty": st.sampled_from([0.7, 1.3, 2.0]),
    "no_repeat_ngram_size": st.integers(1, 3),
    "bad_words": st.lists(WORDS, min_size=1, max_size=12),
    "logit_bias": st.dictionaries(TOKENS, st.sampled_from([-8.0, -1.5, 0.5, 4.0]), min_size=1, max_size=8),
    "allowed_token_ids": st.lists(TOKENS, min_size=25, max_size=36, unique=True),
    "min_tokens": st.integers(1, 4),
}
OURS: dict[str, st.SearchStrategy[Any]] = {
    "presence_penalty": st.sampled_from([-1.0, 0.8]),
    "frequency_penalty": st.sampled_from([-0.5, 0.4]),
    "allowed_token_ids": st.lists(TOKENS, min_size=1, max_size=6),
    "forced_prefix": st.lists(TOKENS.filter(lambda t: t not in EOS), min_size=1, max_size=4),
    "ignore_eos": st.just(True),
}


@st.composite
def cases(draw: st.DrawFn, options: dict[str, st.SearchStrategy[Any]]) -> Case:
    """One to four options at once; width 1 stands for greedy search too."""
    names = draw(st.lists(st.sampled_from(sorted(options)), min_size=1, max_size=4, unique=True))
    given_options = {name: draw(options[name]) for name in names}
    if "forced_prefix" in given_options:
        allowed = given_options.pop("allowed_token_ids", None)
        if allowed is not None:
            given_options["forced_prefix"] = [t for t in allowed if t not in EOS][:4]
            given_options["allowed_token_ids"] = allowed
        forced = set(given_options["forced_prefix"])
        words = given_options.get("bad_words", [])
        # What a prefix completes is refused, also where it begins in the prompt.
        given_options["bad_words"] = [w for w in words if w[-1] not in forced]
    beam = Beam(
        width=draw(st.sampled_from([1, 2, 3, 5])),
        length_penalty=draw(st.sampled_from([0.0, 1.0, 2.0])),
        early_stopping=draw(st.sampled_from([False, True, "never"])),
    )
    chosen = Options(max_tokens=draw(st.integers(4, 10)), **given_options)
    prompt = tuple(draw(st.lists(TOKENS, min_size=1, max_size=8)))
    ends = frozenset() if chosen.ignore_eos else EOS
    return Case(prompt, beam, chosen, ends, greedy=beam.width == 1 and beam.length_penalty == 1.0)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with paired(random_llama(VOCAB, 5, 0.6), EOS, block_size=4) as both:
        yield both


def generates(options: Options) -> dict[str, Any]:
    """The same options in `generate`'s words."""
    found: dict[str, Any] = {}
    if options.repetition_penalty != 1.0:
        found["repetition_penalty"] = options.repetition_penalty
    if options.no_repeat_ngram_size:
        found["no_repeat_ngram_size"] = options.no_repeat_ngram_size
    if options.bad_words:
        found["bad_words_ids"] = [list(word) for word in options.bad_words]
    if options.logit_bias:
        found["sequence_bias"] = {(token,): bias for token, bias in options.logit_bias.items()}
    if options.allowed_token_ids is not None:
        found["prefix_allowed_tokens_fn"] = lambda batch, ids: list(options.allowed_token_ids or ())
    if options.min_tokens:
        found["min_new_tokens"] = options.min_tokens
    return found


@given(st.lists(cases(SHARED), min_size=8, max_size=8))
@settings(max_examples=20)
def test_equal_generate(pair: Pair, asked: list[Case]) -> None:
    for case, result in zip(asked, pair.decode(asked), strict=True):
        search = pair.reference(case)
        assert_same(hypotheses(result), search.hypotheses, lambda s=search: s, case)
        if generate_is_defined(case, search) and search.hypotheses:
            want = generate(pair.oracle, case.prompt, case.rule, case.ends, **generates(case.options))
            assert_same(hypotheses(result), want.hypotheses, lambda s=search: s, case)


@given(st.lists(cases(SHARED | OURS), min_size=8, max_size=8))
@settings(max_examples=25)
def test_equal_plain_loops(pair: Pair, asked: list[Case]) -> None:
    for case, result in zip(asked, pair.decode(asked), strict=True):
        want = pair.reference(case).hypotheses
        assert_same(hypotheses(result), want, partial(pair.reference, case), case)


@pytest.mark.parametrize("name", SHARED)
def test_each_option_changes_something(pair: Pair, name: str) -> None:
    """Else the comparisons above would prove nothing for it."""
    value = {
        "repetition_penalty": 2.0,
        "no_repeat_ngram_size": 1,
        "bad_words": [(t,) for t in range(20) if t not in EOS],
        "logit_bias": dict.fromkeys(range(20), 4.0),
        "allowed_token_ids": list(range(20)),
        "min_tokens": 10,
    }[name]
    prompts = [(t, t + 1) for t in range(12)]
    plain = [Case(p, Beam(width=3), Options(max_tokens=10), EOS) for p in prompts]
    other = [Case(p, Beam(width=3), Options(max_tokens=10, **{name: value}), EOS) for p in prompts]
    assert [hypotheses(r) for r in pair.decode(plain)] != [hypotheses(r) for r in pair.decode(other)]
