"""Faults that other engines have had in public, impossible here: one test each, named after the fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forkdecode import (
    Beam,
    BestOf,
    Candidate,
    DecodeResult,
    DiverseBeam,
    Greedy,
    Options,
    Sample,
    StochasticBeam,
    Strategy,
)
from forkdecode.constraint_types import FromCatalogue
from forkdecode.constraints.catalogue_build import build_catalogue
from forkdecode.step import F32
from tests.oracle.beam_rule import Path
from tests.oracle.markov import Asked, Markov, MarkovEngine, beam_scores, draw_logits, log_softmax, markov
from tests.oracle.test_stops import TEXTS, letters_tokenizer

STRATEGIES: dict[str, Strategy] = {
    "greedy": Greedy(),
    "sample": Sample(n=6, seed=3),
    "best_of": BestOf(best_of=6, n=4, seed=3),
    "beam": Beam(width=4),
    "beam of 1": Beam(width=1),
    "beam with sibling ranks": Beam(width=4, sibling_penalty=0.5),
    "diverse beam": DiverseBeam(width=6, groups=3),
    "stochastic beam": StochasticBeam(width=4, seed=3),
}
BEAMS = {name: strategy for name, strategy in STRATEGIES.items() if name.endswith("beam")}
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
each_beam = pytest.mark.parametrize("strategy", BEAMS.values(), ids=BEAMS)


def decoded(
    model: Markov, strategy: Strategy, prompt: Sequence[int] = (0, 1), **options: Any
) -> DecodeResult:
    return MarkovEngine(model).one(Asked(tuple(prompt), strategy, Options(**{"max_tokens": 6, **options})))


def paths(result: DecodeResult) -> list[Path]:
    return [c.token_ids for c in result.candidates]


def scored(result: DecodeResult) -> list[tuple[Path, float, float]]:
    return [(c.token_ids, c.score, c.cumulative_logprob) for c in result.candidates]


@pytest.mark.parametrize("penalty", [-1.0, 0.5, 2.0])
@pytest.mark.parametrize(
    "kind", [Beam(width=4), Beam(width=1), DiverseBeam(width=4)], ids=["4", "1", "diverse"]
)
def test_a_length_penalty_that_counts_the_prompt(kind: Any, penalty: float) -> None:
    model = markov(1, 6, [5], likely_ends=1.0, positions=1)
    strategy = replace(kind, length_penalty=penalty)
    for prompt in ((2,), (1, 2), tuple(range(5)) * 4 + (2,)):
        for c in decoded(model, strategy, prompt).candidates:
            assert c.score == pytest.approx(c.selection_logprob / len(c.token_ids) ** penalty, rel=1e-6)


NOT_DRAWN: dict[str, Strategy] = {
    "greedy": Greedy(),
    "beam": Beam(width=4),
    "never": Beam(width=4, early_stopping="never", length_penalty=2.0),
    "diverse": DiverseBeam(width=4),
}


@pytest.mark.parametrize("strategy", NOT_DRAWN.values(), ids=NOT_DRAWN)
def test_scores_that_depend_on_prompt_length(strategy: Strategy) -> None:
    """The model sees the last token alone, so any difference would be ours."""
    model = markov(2, 6, [5], likely_ends=1.0, positions=1)
    short = scored(decoded(model, strategy, (2,)))
    assert scored(decoded(model, strategy, (4, 3, 1, 0, 2))) == short
    assert scored(decoded(model, strategy, (1, 2) * 20)) == short


@pytest.fixture(scope="module")
def spelling() -> Markov:
    """A model whose tokens are letters: of EOS, words and half characters."""
    return markov(4, len(TEXTS), [0], spread=1.0, tokenizer=letters_tokenizer())


@each_strategy
def test_stop_strings_ignored(spelling: Markov, strategy: Strategy) -> None:
    stops = [b"a", b"bc", "é".encode()]
    texts = [s.decode() for s in stops]
    result = decoded(spelling, strategy, (4, 5), stop=tuple(texts), ignore_eos=True, max_tokens=12)
    free = decoded(spelling, strategy, (4, 5), ignore_eos=True, max_tokens=12)
    assert any(stop in b"".join(TEXTS[t] for t in path[:-1]) for path in paths(free) for stop in stops)
    assert "stop" in {c.finish_reason for c in result.candidates}
    for c in result.candidates:
        before = b"".join(TEXTS[t] for t in c.token_ids[:-1])
        whole = before + TEXTS[c.token_ids[-1]]
        assert not any(stop in before for stop in stops)
        assert any(stop in whole for stop in stops) == (c.finish_reason == "stop")
        assert not any(text in c.text for text in texts)


@each_strategy
def test_min_tokens_ignored(strategy: Strategy) -> None:
    model = markov(5, 6, [1, 4], likely_ends=6.0)
    early = decoded(model, strategy, stop_token_ids=(2,))
    assert min(map(len, paths(early))) == 1
    late = decoded(model, strategy, stop_token_ids=(2,), min_tokens=4)
    assert min(map(len, paths(late))) == 5
    assert not {1, 2, 4} & {token for path in paths(late) for token in path[:4]}


@pytest.mark.parametrize("kind", [Beam(width=2), DiverseBeam(width=4)], ids=["beam", "diverse"])
def test_all_2k_candidates_are_ends(kind: Any) -> None:
    """Four ends a row are likelier than anything else; the beams behind them must still be found, and in
    the end they win, for length pays."""
    strategy = replace(kind, length_penalty=8.0, early_stopping="never")
    result = decoded(markov(6, 6, [0, 2, 3, 5], likely_ends=9.0), strategy)
    assert len(result.candidates) == strategy.width
    assert {len(path) for path in paths(result)} == {6}


def test_early_stopping_decided_across_the_batch() -> None:
    """Each request ends in the step in which it would end alone, with what it would have alone."""
    model = markov(7, 6, [0, 3], likely_ends=1.5)
    asked = [
        Asked(
            (1, 2, token), replace(kind, early_stopping=early, length_penalty=penalty), Options(max_tokens=m)
        )
        for token in (1, 4)
        for early in (True, False, "never")
        for penalty in (0.0, 3.0)
        for m in (4, 12)
        for kind in (Beam(width=3), DiverseBeam(width=4))
    ]
    engine = MarkovEngine(model, prefix_cache=False)
    together = engine.decode(asked)
    alone = [engine.one(one) for one in asked]
    assert len({result.usage.steps for result in alone}) > 3
    for here, there in zip(together, alone, strict=True):
        assert isinstance(here, DecodeResult)
        assert scored(here) == scored(there)
        assert here.usage.steps == there.usage.steps


@each_strategy
@pytest.mark.parametrize("allowed", [None, (0, 5), (0, 1, 5)], ids=["all", "two", "three"])
def test_a_wrong_parent(strategy: Strategy, allowed: tuple[int, ...] | None) -> None:
    """At an end, or where there are fewer candidates than a step would take: each candidate's sum is that of
    the path that it says it is."""
    for seed in range(6):
        model = markov(seed, 6, [5], likely_ends=1.0)
        for c in decoded(model, strategy, allowed_token_ids=allowed, max_tokens=5).candidates:
            assert c.cumulative_logprob == pytest.approx(path_logprob(model, (0, 1), c), abs=1e-4)


def path_logprob(model: Markov, prompt: Sequence[int], c: Candidate) -> float:
    rows = [log_softmax(model.row([*prompt, *c.token_ids[:i]])) for i in range(len(c.token_ids))]
    return float(sum(row[token] for row, token in zip(rows, c.token_ids, strict=True)))


ITEMS = [(1, 2), (1, 2, 3), (1, 2), (4,), (3, 3), (4,), (1, 2, 3)]


@each_beam
@pytest.mark.parametrize("width", [2, 4, 12])
def test_duplicates_under_constraints(strategy: Any, width: int) -> None:
    """Of fewer legal sequences than beams each comes once (once a group, where groups don't share), and
    the result says that there are no more."""
    catalogues = {"items": build_catalogue(ITEMS)}
    engine = MarkovEngine(markov(8, 6, [0]), catalogues=catalogues)
    groups = 2 if isinstance(strategy, DiverseBeam) else 1
    changes = {"groups": groups} if groups > 1 else {}
    beam = replace(strategy, width=width * groups, **changes)
    result = engine.one(Asked((5,), beam, Options(max_tokens=8, constraint=FromCatalogue("items"))))
    legal = {(*item, 0) for item in ITEMS}
    found = paths(result)
    assert set(found) <= legal
    assert max(found.count(path) for path in found) <= groups
    assert len(found) == min(width, len(legal)) * groups
    assert result.exhausted == (width > len(legal))


@pytest.mark.parametrize(
    "strategy", [Beam(width=9), StochasticBeam(width=9, seed=1)], ids=["beam", "stochastic"]
)
def test_an_item_for_each_end_of_the_model(strategy: Strategy) -> None:
    """Two EOS ids are two sequences an item; with one of them banned each item comes once."""
    engine = MarkovEngine(markov(8, 6, [0, 5]), catalogues={"items": build_catalogue(ITEMS)})
    constraint, legal = FromCatalogue("items"), set(ITEMS)
    both = engine.one(Asked((5,), strategy, Options(max_tokens=8, constraint=constraint)))
    assert set(paths(both)) == {(*item, end) for item in legal for end in (0, 5)}
    one = engine.one(Asked((5,), strategy, Options(max_tokens=8, constraint=constraint, bad_words=((5,),))))
    assert sorted(paths(one)) == sorted((*item, 0) for item in legal)
    assert one.exhausted


@pytest.mark.parametrize("early", [True, False])
def test_groups_sharing_a_finished_pool(early: Any) -> None:
    """The first group returns what a beam of its width returns, and each later one as many, however much
    worse they are."""
    kept = {"length_penalty": 0.0, "early_stopping": early}
    for seed in range(8):
        model = markov(seed, 6, [0, 1], likely_ends=1.0)
        found = scored(decoded(model, DiverseBeam(width=6, groups=3, diversity_penalty=1e4, **kept)))
        first = scored(decoded(model, Beam(width=2, **kept)))
        assert len(found) == 6
        assert set(first) <= set(found)
        # Groups that may not begin alike: what doesn't begin as the first group's is of the others.
        begun = {path[0] for path, _, _ in first}
        assert len([path for path, _, _ in found if path[0] not in begun]) >= 2


@each_strategy
def test_a_processor_that_reaches_one_row_only(strategy: Strategy) -> None:
    model = markov(10, 6, [], spread=0.5)
    free = decoded(model, strategy, max_tokens=8)
    assert len({tokens for path in paths(free) for tokens in path}) > 2
    for options in (
        {"bad_words": ((3,), (1,))},
        {"allowed_token_ids": (0, 2, 4, 5)},
        {"logit_bias": {1: -1e4, 3: -1e4}},
    ):
        for path in paths(decoded(model, strategy, max_tokens=8, **options)):
            assert not {1, 3} & set(path)


HISTORIES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.7},
    {"presence_penalty": 1.5, "frequency_penalty": 0.8},
    {"no_repeat_ngram_size": 2},
    {"bad_words": ((1, 2), (2, 0, 3))},
]


@each_strategy
@pytest.mark.parametrize("options", HISTORIES, ids=lambda options: next(iter(options)))
def test_a_penalty_that_sees_another_rows_history(strategy: Strategy, options: dict[str, Any]) -> None:
    """Each chosen token's processed log-probability is that of its own path."""
    model, prompt = markov(11, 6, [5]), (1, 2, 0)
    asked = Asked(prompt, strategy, Options(max_tokens=6, logprobs=0, **options))
    result = MarkovEngine(model).one(asked)
    for c in result.candidates:
        assert c.logprobs is not None
        for i, token in enumerate(c.logprobs):
            row = chosen_from(model, asked, c.token_ids[:i])
            assert token.selection_logprob == pytest.approx(float(row[token.token_id]), abs=1e-4)


def chosen_from(model: Markov, asked: Asked, path: Path) -> F32:
    """[V] Beams of two and more process log-probabilities, all others logits."""
    strategy = asked.strategy
    if isinstance(strategy, (Beam, DiverseBeam)) and strategy.width > 1:
        return beam_scores(model, asked)([path])[0]
    return log_softmax(draw_logits(model, asked, path))


@each_beam
def test_a_width_above_the_vocabulary(strategy: Any) -> None:
    """A first step has as many candidates as there are tokens, and no more are made up."""
    wide = replace(strategy, width=300)
    assert sorted(set(paths(decoded(markov(12, 3), wide, max_tokens=1)))) == [(0,), (1,), (2,)]
    found = paths(decoded(markov(12, 3), wide, max_tokens=4))
    assert len(set(found)) == 81
    if not isinstance(strategy, DiverseBeam):
        assert len(found) == 81


@each_beam
@pytest.mark.parametrize("ends", [(), (0, 1, 2, 3)], ids=["none", "most"])
def test_a_beam_that_never_ends(strategy: Any, ends: tuple[int, ...]) -> None:
    """Whatever length is worth, and whether anything ends or not: max_tokens steps are the most."""
    modes: list[Any] = [strategy]
    if not isinstance(strategy, StochasticBeam):
        modes = [
            replace(strategy, early_stopping=early, length_penalty=penalty)
            for early in (True, False, "never")
            for penalty in (-100.0, 0.0, 100.0)
        ]
    for model in (markov(13, 6, ends), markov(13, 6, ends, likely_ends=20.0)):
        for mode in modes:
            for least in (0, 20):
                result = decoded(model, mode, max_tokens=20, min_tokens=least)
                assert result.usage.steps <= 20
                assert result.candidates
                assert all(np.isfinite(c.score) for c in result.candidates)


TWELVE: dict[str, Strategy] = {
    "sample": Sample(n=12, seed=1),
    "best_of": BestOf(best_of=12, n=12, seed=1),
    "stochastic": StochasticBeam(width=12, seed=1),
}


@pytest.mark.parametrize("strategy", TWELVE.values(), ids=TWELVE)
def test_a_seed_copied_to_all_n(strategy: Strategy) -> None:
    """Six tokens, all about as likely: twelve candidates that shared their draws would be one."""
    model = markov(14, 6, [], spread=0.1)
    found = paths(decoded(model, strategy))
    assert len(set(found)) == 12
    assert paths(decoded(model, strategy)) == found
