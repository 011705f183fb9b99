"""Beams as wide as the tree, against every sequence there is, where `generate` is arbitrary.

Width 1,000 over a vocabulary of 5: no step has W legal candidates, so `generate` returns placeholders.
The engine must return each complete sequence exactly once, ranked.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode import Beam, Options
from tests.oracle.beam_rule import Search
from tests.oracle.engines import Case, Pair, hypotheses, model_scores, paired
from tests.oracle.enumeration import all_sequences, ends_by, ranking
from tests.oracle.test_random_models import random_llama
from tests.oracle.verdict import assert_same

VOCAB = 5
EOS = frozenset({4})


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with paired(random_llama(VOCAB, 3, 0.6), EOS, block_size=1, num_blocks=20_000) as both:
        yield both


@st.composite
def cases(draw: st.DrawFn) -> Case:
    tokens = st.integers(0, VOCAB - 1)
    options = Options(
        max_tokens=draw(st.integers(1, 4)),
        ignore_eos=draw(st.booleans()),
        stop_token_ids=tuple(draw(st.lists(tokens, max_size=2, unique=True))),
        repetition_penalty=draw(st.sampled_from([1.0, 1.5])),
        no_repeat_ngram_size=draw(st.sampled_from([0, 0, 2])),
        bad_words=tuple(draw(st.lists(st.lists(tokens, min_size=2, max_size=2).map(tuple), max_size=3))),
        allowed_token_ids=draw(st.none() | st.lists(tokens, min_size=2, max_size=4).map(tuple)),
        presence_penalty=draw(st.sampled_from([0.0, 0.7])),
    )
    beam = Beam(width=1000, length_penalty=draw(st.sampled_from([-1.0, 0.0, 1.0, 2.0])))
    ends = frozenset(options.stop_token_ids) | (frozenset() if options.ignore_eos else EOS)
    return Case(tuple(draw(st.lists(tokens, min_size=1, max_size=4))), beam, options, ends)


@given(cases())
@settings(max_examples=40)
def test_finds_every_sequence(pair: Pair, case: Case) -> None:
    every = everything(pair, case)
    (result,) = pair.decode([case])
    assert_same(hypotheses(result), every.hypotheses, lambda: every, case)


def everything(pair: Pair, case: Case) -> Search:
    """All complete sequences, best first, and by how little they are ordered."""
    scores = model_scores(pair.oracle, case.prompt, case.options, case.ends, greedy=False)
    return ranking(case.rule, all_sequences(scores, ends_by(case.ends), case.options.max_tokens))
