"""Constraints with every strategy on enumerable models: what a definition gives over legal sequences."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode import (
    Beam,
    BestOf,
    DecodeResult,
    DiverseBeam,
    ForkdecodeError,
    Greedy,
    GroupFailedError,
    Options,
    Sample,
    StochasticBeam,
    Strategy,
)
from forkdecode.constraint_types import FromCatalogue, Regex
from forkdecode.constraints.catalogue_build import build_catalogue
from tests.oracle import (
    test_markov_beams,
    test_markov_draws,
    test_markov_stochastic,
    test_markov_varied_beams,
)
from tests.oracle.beam_rule import Rule
from tests.oracle.engines import hypotheses
from tests.oracle.enumeration import all_sequences, ranking
from tests.oracle.languages import Items, RandomFunction, Texts
from tests.oracle.markov import Asked, Language, Markov, MarkovEngine, beam_scores, ending, ends_of, markov
from tests.oracle.markov_cases import FILTERS, beams, diverse_beams, models, prompts
from tests.oracle.test_stops import TEXTS, letters_tokenizer
from tests.oracle.verdict import assert_same

Batch = tuple[MarkovEngine, list[Asked]]
STRATEGIES: st.SearchStrategy[Strategy] = st.one_of(
    st.just(Greedy()),
    st.builds(Sample, n=st.integers(1, 4), **FILTERS),
    st.builds(BestOf, best_of=st.just(4), n=st.integers(1, 4), **FILTERS),
    beams(st.integers(2, 6), more=True),
    diverse_beams(),
    st.builds(StochasticBeam, width=st.sampled_from([1, 2, 5, 40]), **FILTERS),
)


def check(model: Markov, asked: Asked, result: DecodeResult | ForkdecodeError) -> None:
    """By the strategy's own definition; and every candidate is legal from its first token to its last."""
    of: dict[type, Any] = {
        Greedy: test_markov_beams.check_greedy,
        Sample: test_markov_draws.check,
        BestOf: test_markov_draws.check,
        Beam: test_markov_varied_beams.check,
        DiverseBeam: test_markov_varied_beams.check,
        StochasticBeam: test_markov_stochastic.check,
    }
    of[type(asked.strategy)](model, asked, result)
    if isinstance(result, GroupFailedError):
        assert "no legal token" in str(result), result
        return
    assert isinstance(result, DecodeResult), result
    assert asked.language is not None
    for c in result.candidates:
        for i, token in enumerate(c.token_ids):
            assert token in asked.language.allowed(c.token_ids[:i])


@st.composite
def options(draw: st.DrawFn, model: Markov, language: Language, **constraint: Any) -> Options:
    """Some of what else there is, beside a constraint. Lengths that no item has are refused."""
    least, most = (1, 6)
    if isinstance(language, Items):
        lengths = sorted(map(len, language.items))
        least, most = lengths[0] + bool(language.ends), lengths[-1]
    longest = draw(st.integers(least, 6))
    chosen: dict[str, Any] = {
        "max_tokens": longest,
        "min_tokens": draw(st.sampled_from([0, 0, 0, 1, min(most, longest // 2)])),
        "presence_penalty": draw(st.sampled_from([0.0, 0.0, 1.5])),
        "no_repeat_ngram_size": draw(st.sampled_from([0, 0, 0, 2])),
    }
    if draw(st.booleans()) and not draw(st.booleans()):
        chosen["stop_token_ids"] = (draw(st.integers(0, model.vocab - 1)),)
    return Options(**chosen, **constraint)


@st.composite
def catalogues(draw: st.DrawFn) -> Batch:
    """Of a few items, some of which begin others where EOS ends them."""
    model = draw(models().filter(lambda m: 0 < len(m.eos) < m.vocab))
    plain = [t for t in range(model.vocab) if t not in model.eos]
    item = st.lists(st.sampled_from(plain), min_size=1, max_size=4).map(tuple)
    items = draw(st.lists(item, min_size=1, max_size=12))
    shortest: list[tuple[int, ...]] = []
    for one in sorted(items, key=len):
        if not any(one[: len(other)] == other for other in shortest):
            shortest.append(one)
    engine = MarkovEngine(
        model, catalogues={"any": build_catalogue(items), "none begins another": build_catalogue(shortest)}
    )
    by_eos, by_item = Items(frozenset(items), model.eos), Items(frozenset(shortest), frozenset())
    one = st.one_of(
        asked(model, by_eos, constraint=FromCatalogue("any")),
        asked(model, by_item, constraint=FromCatalogue("none begins another", end="item")),
    )
    return engine, draw(st.lists(one, min_size=6, max_size=6))


@st.composite
def asked(draw: st.DrawFn, model: Markov, language: Language, **constraint: Any) -> Asked:
    chosen = draw(options(model, language, **constraint))
    if isinstance(language, Items):
        language = replace(language, least=chosen.min_tokens)
    return Asked(draw(prompts(model.vocab)), draw(STRATEGIES), chosen, language)


@given(catalogues())
@settings(max_examples=50)
def test_catalogues(batch: Batch) -> None:
    engine, several = batch
    for one, result in zip(several, engine.decode(several), strict=True):
        check(engine.model, one, result)


@st.composite
def functions(draw: st.DrawFn) -> Batch:
    model = draw(models())
    several = []
    for _ in range(4):
        prompt = draw(prompts(model.vocab))
        language = RandomFunction(draw(st.integers(0, 10**6)), model.vocab, prompt)
        one = draw(asked(model, language, prefix_allowed_tokens_fn=language.function))
        several.append(replace(one, prompt=prompt))
    return MarkovEngine(model), several


@given(functions())
@settings(max_examples=30)
def test_functions(batch: Batch) -> None:
    engine, several = batch
    for one, result in zip(several, engine.decode(several), strict=True):
        check(engine.model, one, result)


@st.composite
def expressions(draw: st.DrawFn) -> tuple[Markov, list[Asked]]:
    """Alternatives of a few letters; tokens are words, half characters and EOS."""
    model = markov(draw(st.integers(0, 10**6)), len(TEXTS), [0], spread=1.0, tokenizer=letters_tokenizer())
    texts = draw(st.lists(st.text("abcé", min_size=1, max_size=4), min_size=1, max_size=5))
    language = Texts(frozenset(t.encode() for t in texts), tuple(TEXTS), model.eos)
    one = asked(model, language, constraint=Regex("|".join(map(re.escape, texts)))).map(
        lambda a: replace(a, language=replace(language, ends=ends_of(model, a.options)))
    )
    return model, draw(st.lists(one, min_size=3, max_size=3))


@given(expressions())
@settings(max_examples=20)
def test_regular_expressions(batch: tuple[Markov, list[Asked]]) -> None:
    model, several = batch
    for one, result in zip(several, MarkovEngine(model).decode(several), strict=True):
        check(model, one, result)


@given(catalogues(), st.sampled_from([0.0, 1.0]))
@settings(max_examples=30)
def test_a_beam_as_wide_as_the_catalogue_ranks_all_of_it(batch: Batch, penalty: float) -> None:
    engine, (one, *_) = batch
    beam = Beam(width=60, length_penalty=penalty)
    every = replace(one, strategy=beam, options=replace(one.options, max_tokens=6))
    found = all_sequences(beam_scores(engine.model, every), ending(engine.model, every), 6)
    want = ranking(Rule.of(beam, 6), found)
    (result,) = engine.decode([every])
    assert isinstance(result, (DecodeResult, GroupFailedError)), result
    assert_same(hypotheses(result), want.hypotheses, lambda: want, every)
    assert isinstance(result, GroupFailedError) or result.exhausted
