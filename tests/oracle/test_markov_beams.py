"""Beams and greedy decoding on enumerable models, against their definitions executed on plain paths."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode import Beam, DecodeResult, Greedy, GroupFailedError, Options
from tests.oracle.beam_rule import Rule, Search, beam_search
from tests.oracle.engines import hypotheses
from tests.oracle.enumeration import all_sequences, ranking
from tests.oracle.markov import (
    Asked,
    Markov,
    MarkovEngine,
    beam_scores,
    ending,
    greedy_path,
    markov,
)
from tests.oracle.markov_cases import beams, depth_of, models, options, prompts
from tests.oracle.verdict import assert_same

Batch = tuple[Markov, list[Asked]]


@st.composite
def batches(draw: st.DrawFn, widths: st.SearchStrategy[int]) -> Batch:
    model = draw(models())
    one = st.builds(Asked, prompts(model.vocab), beams(widths), options(model))
    return model, draw(st.lists(one, min_size=6, max_size=6))


def search(model: Markov, asked: Asked) -> Search:
    """The rule, executed. A beam of one is greedy search, which processes logits."""
    beam = asked.strategy
    assert isinstance(beam, Beam)
    scores = beam_scores(model, asked)
    return beam_search(Rule.of(beam, asked.options.max_tokens), scores, ending(model, asked))


def check(engine: MarkovEngine, asked: Asked, result: object) -> None:
    assert isinstance(result, (DecodeResult, GroupFailedError)), result
    want = search(engine.model, asked)
    assert_same(hypotheses(result), want.hypotheses, lambda: want, asked)


@given(batches(st.integers(2, 8)), st.sampled_from([1, 2, 4]))
@settings(max_examples=40)
def test_beams_equal_their_definition(batch: Batch, block_size: int) -> None:
    model, asked = batch
    engine = MarkovEngine(model, block_size=block_size)
    for one, result in zip(asked, engine.decode(asked), strict=True):
        check(engine, one, result)


@st.composite
def whole_trees(draw: st.DrawFn) -> tuple[Markov, Asked]:
    model = draw(models())
    beam = draw(beams(st.just(2000)))
    most = depth_of(model.vocab)
    return model, Asked(draw(prompts(model.vocab)), replace(beam, patience=1.0), draw(options(model, most)))


@given(whole_trees())
@settings(max_examples=40)
def test_a_beam_as_wide_as_the_tree_is_the_ranking_of_all_sequences(case: tuple[Markov, Asked]) -> None:
    model, asked = case
    beam = asked.strategy
    assert isinstance(beam, Beam)
    scores = beam_scores(model, asked)
    longest = asked.options.max_tokens
    every = all_sequences(scores, ending(model, asked), longest)
    want = ranking(Rule.of(beam, longest), every)
    (result,) = MarkovEngine(model).decode([asked])
    assert isinstance(result, (DecodeResult, GroupFailedError)), result
    assert_same(hypotheses(result), want.hypotheses, lambda: want, asked)


@st.composite
def greedy_batches(draw: st.DrawFn) -> Batch:
    model = draw(models())
    one = st.builds(Asked, prompts(model.vocab), st.just(Greedy()), options(model, 12))
    return model, draw(st.lists(one, min_size=6, max_size=6))


@given(greedy_batches())
@settings(max_examples=40)
def test_greedy_takes_the_likeliest_token(batch: Batch) -> None:
    model, asked = batch
    engine = MarkovEngine(model)
    for one, result in zip(asked, engine.decode(asked), strict=True):
        check_greedy(model, one, result)


def check_greedy(model: Markov, asked: Asked, result: object) -> None:
    """Token for token; where nothing is legal any more the request fails, and says where."""
    path = greedy_path(model, asked)
    if path is None:
        assert isinstance(result, GroupFailedError)
        assert "no legal token" in str(result)
        return
    assert isinstance(result, DecodeResult), result
    assert [c.token_ids for c in result.candidates] == [path]


@given(greedy_batches())
@settings(max_examples=20)
def test_a_beam_of_one_is_greedy(batch: Batch) -> None:
    model, asked = batch
    engine = MarkovEngine(model)
    alone = engine.decode([replace(one, strategy=Beam(width=1)) for one in asked])
    for one, result in zip(asked, alone, strict=True):
        check_greedy(model, one, result)


def test_ends_and_penalties_make_a_difference() -> None:
    """Else the comparisons above would prove nothing about them."""
    model = markov(1, 5, [0, 3], likely_ends=1.0)
    engine = MarkovEngine(model)
    prompt = (1, 2, 4)

    def found(beam: Beam, **options: object) -> list[tuple[int, ...]]:
        result = engine.one(Asked(prompt, beam, Options(max_tokens=6, **options)))  # type: ignore[arg-type]
        return [c.token_ids for c in result.candidates]

    plain = found(Beam(width=3))
    others = [
        found(Beam(width=3, length_penalty=-2.0)),
        found(Beam(width=3, length_penalty=4.0, early_stopping="never")),
        found(Beam(width=3), min_tokens=4),
        found(Beam(width=3), ignore_eos=True),
        found(Beam(width=3), stop_token_ids=(4,)),
    ]
    assert all(other != plain for other in others)
