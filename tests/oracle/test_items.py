"""Beams whose candidates end with their catalogue's item, against the plain rule with masked rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode import Beam, FromCatalogue
from forkdecode.scheduler.events import GroupFailed, GroupFinished
from forkdecode.step import F32
from tests.constraints.toy import Table, items_table
from tests.oracle.beam_rule import Hypothesis, Path, Rule, Search, beam_search
from tests.oracle.verdict import assert_same
from tests.scheduler.engines import VOCAB, request, run, toy_engine
from tests.scheduler.toy import ToyRunner

ITEM = FromCatalogue("items", end="item")


@st.composite
def catalogues(draw: st.DrawFn) -> list[Path]:
    """Items of different lengths, none of which begins another; some tokens are EOS."""
    tokens = st.integers(0, draw(st.sampled_from([3, 6, VOCAB - 1])))
    found = draw(st.lists(st.lists(tokens, min_size=1, max_size=5).map(tuple), min_size=1, max_size=60))
    return [a for a in set(found) if not any(b != a and b[: len(a)] == a for b in found)]


def crowded(seed: int) -> list[Path]:
    """Half of the tokens are items, the others begin longer ones: those that end stand among the best, and
    must not crowd out those that live."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(VOCAB).tolist()
    ends, begins = order[: VOCAB // 2], order[VOCAB // 2 :]
    longer = {(b, *rng.choice(VOCAB, rng.integers(2, 4)).tolist()) for b in begins for _ in range(3)}
    kept = [a for a in longer if not any(b != a and b[: len(a)] == a for b in longer)]
    return [*((token,) for token in ends), *kept]


def reference(
    table: Table, items: Sequence[Path], eos: frozenset[int], beam: Beam, prompt: list[int], options: Any
) -> Search:
    """Every step from all legal continuations. The table knows of no min_tokens: short items are walked into,
    and their last tokens masked. (A catalogue leaves them out: see test_markov_constraints.)"""
    toy = ToyRunner(1, 1, 1, VOCAB)
    whole, min_tokens = set(items), options["min_tokens"]

    def scores(paths: Sequence[Path]) -> F32:
        rows = torch.from_numpy(np.stack([toy.logits(np.array([*prompt, *p])) for p in paths]))
        found = rows.log_softmax(-1).numpy()
        for row, path in zip(found, paths, strict=True):
            for token in range(VOCAB):
                longer = (*path, token)
                early = longer in whole and len(longer) < min_tokens
                early |= token in eos and len(path) < min_tokens
                if early or not table.accepts(longer):
                    row[token] = -np.inf
        return found

    rule = Rule.of(beam, options["max_tokens"])
    return beam_search(rule, scores, lambda path: path in whole or path[-1] in eos)


@given(
    items=catalogues() | st.integers(0, 10_000).map(crowded),
    width=st.integers(2, 9),
    early=st.sampled_from([False, True, "never"]),
    penalty=st.sampled_from([-1.0, 0.0, 1.0, 2.0]),
    max_tokens=st.integers(1, 6),
    min_tokens=st.integers(0, 4),
    eos=st.frozensets(st.integers(0, 6), max_size=2),
    sibling=st.sampled_from([0.0, 0.0, 0.3]),
)
@settings(max_examples=150, deadline=None)
def test_equals_the_plain_rule(
    items: list[Path],
    width: int,
    early: Any,
    penalty: float,
    max_tokens: int,
    min_tokens: int,
    eos: frozenset[int],
    sibling: float,
) -> None:
    beam = Beam(width=width, early_stopping=early, length_penalty=penalty, sibling_penalty=sibling)
    options = {"max_tokens": max_tokens, "min_tokens": min(min_tokens, max_tokens)}
    table = items_table(items, VOCAB)
    search = reference(table, items, eos, beam, [3, 4], options)
    engine = toy_engine()
    what = request("a", [3, 4], beam, eos=sorted(eos), constraint=ITEM, **options)
    engine.submit(dataclasses.replace(what, constraint=table))
    event = run(engine)["a"]
    if not search.hypotheses:
        assert isinstance(event, GroupFailed)
        assert "no legal token" in str(event.error)
        return
    assert isinstance(event, GroupFinished), event
    got = [Hypothesis(c.token_ids, c.score) for c in event.candidates]
    assert_same(got, search.hypotheses, lambda: search, (items, beam))
    assert len({h.tokens for h in got}) == len(got)


@given(items=catalogues(), penalty=st.sampled_from([0.0, 1.0]))
@settings(max_examples=40, deadline=None)
def test_a_beam_as_wide_as_the_catalogue_finds_its_best(items: list[Path], penalty: float) -> None:
    """Nothing is cut, so the best items come out by their scores, and all of them."""
    width = max(2, len(items))
    engine = toy_engine()
    what = request("a", [3, 4], Beam(width, length_penalty=penalty, early_stopping=False), max_tokens=5)
    what = dataclasses.replace(what, options=dataclasses.replace(what.options, constraint=ITEM))
    engine.submit(dataclasses.replace(what, constraint=items_table(items, VOCAB)))
    event = run(engine)["a"]
    assert isinstance(event, GroupFinished), event
    assert {c.token_ids for c in event.candidates} == set(items)
    assert event.exhausted is (len(items) < width)
    scores = [c.score for c in event.candidates]
    assert scores == sorted(scores, reverse=True)
