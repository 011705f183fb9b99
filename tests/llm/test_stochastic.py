"""Stochastic beams in a real engine: catalogues, seeds, batch-mates, ends, what is told on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from forkdecode import (
    LLM,
    Beam,
    Committed,
    FromCatalogue,
    InvalidRequestError,
    Options,
    Sample,
    StochasticBeam,
)
from forkdecode.constraints.catalogue_build import build_catalogue
from forkdecode.estimates import entropy, expectation, probability, weighted
from forkdecode.results import Finished
from tests.llm.models import PROMPT, opened, outcome

ITEMS = [(3,), (3, 4), (3, 4, 5), (7, 1), (7, 2), (7, 2, 2, 2), (9, 9), (9, 8, 1), (0, 5, 2)]
FROM_ITEMS = {"constraint": FromCatalogue("items"), "max_tokens": 8}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with opened(catalogues={"items": build_catalogue(ITEMS)}) as llm:
        yield llm


@pytest.mark.parametrize("temperature", [0.7, 1.0, 3.0])
def test_all_of_a_catalogue_have_probability_one_together(llm: LLM, temperature: float) -> None:
    """Each step's distribution is renormalised over what the catalogue leaves, so sequences have one, too."""
    result = llm.decode(PROMPT, StochasticBeam(20, temperature, seed=2), **FROM_ITEMS)
    assert sorted(c.token_ids[:-1] for c in result.candidates) == sorted(ITEMS)
    assert result.exhausted
    assert math.isclose(sum(math.exp(c.selection_logprob) for c in result.candidates), 1.0, rel_tol=1e-5)
    scores = [c.score for c in result.candidates]
    assert scores == sorted(scores, reverse=True)
    assert math.isclose(expectation(result, lambda c: 1.0), 1.0, rel_tol=1e-5)
    assert probability(result, lambda c: c.token_ids[0] == 7) < 1.0


def test_estimates_from_narrow_beams_come_to_the_whole(llm: LLM) -> None:
    """The entropy of the catalogue's items, over fixed seeds, within 3.5 standard errors."""
    whole = entropy(llm.decode(PROMPT, StochasticBeam(20, 3.0, seed=1), **FROM_ITEMS))
    beams = [StochasticBeam(4, 3.0, seed=seed) for seed in range(150)]
    handles = [llm.submit(PROMPT, beam, **FROM_ITEMS) for beam in beams]
    found = [entropy(handle.result()) for handle in handles]
    mean = math.fsum(found) / len(found)
    error = math.sqrt(math.fsum((f - mean) ** 2 for f in found)) / len(found)
    assert abs(mean - whole) < 3.5 * error


@pytest.mark.parametrize(
    "options", [{}, FROM_ITEMS, {"stop": ("a", "e"), "min_tokens": 3}], ids=["plain", "items", "stop"]
)
def test_a_narrower_beam_is_the_head_of_a_wider_one(llm: LLM, options: dict[str, Any]) -> None:
    chosen = {"max_tokens": 6, **options}
    wide = outcome(llm.decode(PROMPT, StochasticBeam(7, seed=5), **chosen))
    for width in (1, 2, 5):
        narrow = outcome(llm.decode(PROMPT, StochasticBeam(width, seed=5), **chosen))
        assert [c[1:4] for c in narrow] == [c[1:4] for c in wide[:width]]


def test_batch_mates_change_no_bit_and_seeds_all(llm: LLM) -> None:
    alone = llm.decode(PROMPT, StochasticBeam(5, seed=5, top_p=0.9), max_tokens=9)
    mates = [Beam(4), Sample(5, seed=1), StochasticBeam(6, seed=8), StochasticBeam(5, seed=5, top_p=0.9)]
    handles = [llm.submit(PROMPT, mate, max_tokens=9) for mate in mates]
    together = [handle.result() for handle in handles]
    assert outcome(together[3]) == outcome(alone)
    assert outcome(together[2]) != outcome(alone)[: len(outcome(together[2]))]
    fresh = llm.decode(PROMPT, StochasticBeam(5), max_tokens=9)
    assert fresh.seed is not None
    again = llm.decode(PROMPT, StochasticBeam(5, seed=fresh.seed), max_tokens=9)
    assert outcome(again) == outcome(fresh)


def test_sequences_differ_and_ends_are_named(llm: LLM) -> None:
    result = llm.decode(
        PROMPT, StochasticBeam(12, seed=3, temperature=2.0), max_tokens=5, stop=("a", "e", "o")
    )
    assert len({c.token_ids for c in result.candidates}) == 12
    assert {c.finish_reason for c in result.candidates} <= {"eos", "stop", "length"}
    for candidate in result.candidates:
        assert not set(candidate.text) & set("aeo")
        assert candidate.selection_logprob <= 0.0
    assert not result.exhausted
    assert len(weighted(result)) == 12


def test_what_is_committed_is_in_every_result(llm: LLM) -> None:
    """A sharp distribution, so that rows do have much in common."""
    chosen = StochasticBeam(4, temperature=0.25, seed=11)
    told: tuple[int, ...] = ()
    for event in llm.stream(PROMPT, chosen, max_tokens=40, ignore_eos=True):
        if isinstance(event, Committed):
            told += event.token_ids
        elif isinstance(event, Finished):
            assert all(c.token_ids[: len(told)] == told for c in event.result.candidates)
    assert told


def test_temperature_zero_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match=r"^temperature: 0 leaves nothing to sample"):
        StochasticBeam(3, temperature=0.0)


def test_trees_refuse_it_by_name(llm: LLM) -> None:
    with (
        llm.tree(PROMPT) as tree,
        pytest.raises(InvalidRequestError, match=r"^strategy: .*does not make nodes"),
    ):
        tree.decode(tree.root, StochasticBeam(2), options=Options())  # type: ignore[arg-type]
