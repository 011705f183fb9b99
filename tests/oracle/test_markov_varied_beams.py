"""Beams whose width changes, that rank siblings or use scorers, and beams in groups, against their
definitions executed on plain paths."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode import Beam, DecodeResult, DiverseBeam, ForkdecodeError, GroupFailedError, Options
from tests.oracle.beam_rule import Rule, Search, beam_search, diverse_search
from tests.oracle.engines import hypotheses
from tests.oracle.markov import Asked, Markov, MarkovEngine, beam_scores, ending, markov
from tests.oracle.markov_cases import beams, diverse_beams, models, options, prompts
from tests.oracle.verdict import assert_same

Batch = tuple[Markov, list[Asked]]


@st.composite
def batches(draw: st.DrawFn, strategies: st.SearchStrategy[Beam] | st.SearchStrategy[DiverseBeam]) -> Batch:
    model = draw(models())
    one = st.builds(Asked, prompts(model.vocab), strategies, options(model))
    return model, draw(st.lists(one, min_size=6, max_size=6))


def search(model: Markov, asked: Asked) -> Search:
    scores = beam_scores(model, asked)
    strategy, longest = asked.strategy, asked.options.max_tokens
    ends = ending(model, asked)
    if isinstance(strategy, DiverseBeam):
        return diverse_search(strategy, longest, scores, ends)
    assert isinstance(strategy, Beam)
    return beam_search(Rule.of(strategy, longest), scores, ends)


def check(model: Markov, asked: Asked, result: DecodeResult | ForkdecodeError) -> None:
    assert isinstance(result, (DecodeResult, GroupFailedError)), (result, asked)
    want = search(model, asked)
    assert_same(hypotheses(result), want.hypotheses, lambda: want, asked)


@given(batches(beams(st.integers(2, 6), more=True)))
@settings(max_examples=40)
def test_widths_sibling_ranks_and_scorers(batch: Batch) -> None:
    model, asked = batch
    for one, result in zip(asked, MarkovEngine(model).decode(asked), strict=True):
        check(model, one, result)


@given(batches(diverse_beams()))
@settings(max_examples=40)
def test_groups_avoid_each_others_tokens(batch: Batch) -> None:
    """Algorithm 1 of the paper, executed."""
    model, asked = batch
    for one, result in zip(asked, MarkovEngine(model).decode(asked), strict=True):
        check(model, one, result)


def test_each_setting_makes_a_difference() -> None:
    """Else the comparisons above would prove nothing about it."""
    engine = MarkovEngine(markov(3, 6, [5], likely_ends=0.5))

    def found(strategy: Beam | DiverseBeam) -> list[tuple[int, ...]]:
        return [c.token_ids for c in engine.one(Asked((1, 2), strategy, Options(max_tokens=6))).candidates]

    plain = found(Beam(width=4))
    assert found(DiverseBeam(width=4, groups=1)) == plain
    others = [
        found(Beam(width=4, widths=(1, 1, 4))),
        found(Beam(width=4, widths=(4, 2))),
        found(Beam(width=4, sibling_penalty=1.0)),
        found(DiverseBeam(width=4, groups=2, diversity_penalty=2.0)),
        found(DiverseBeam(width=4, groups=2, diversity_penalty=0.1)),
        found(DiverseBeam(width=4, groups=4, diversity_penalty=2.0)),
    ]
    assert len({tuple(other) for other in others} | {tuple(plain)}) == len(others) + 1
