"""Diverse beams, widths, sibling ranks and scorers on a real tiny model, as callers use them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forkdecode import (
    LLM,
    Beam,
    Contrastive,
    CustomScorer,
    DiverseBeam,
    Finished,
    GroupFailedError,
    InvalidRequestError,
    LengthNormalised,
    Options,
)
from forkdecode.results import Committed

PROMPT = "hello world, hello"
KINDS: dict[str, Any] = {
    "diverse": DiverseBeam(6, 3),
    "groups of one": DiverseBeam(4, 4, 1.0),
    "widths": Beam(6, widths=(2, 6, 3)),
    "siblings": Beam(4, sibling_penalty=0.7),
    "normalised": Beam(4, scorer=LengthNormalised()),
    "contrastive": DiverseBeam(4, 2, scorer=Contrastive((-3.0, -6.0, -9.0)), early_stopping="never"),
}
OPTIONS: list[dict[str, Any]] = [
    {"stop": ["a", "or"]},
    {"min_tokens": 4, "stop_token_ids": (40, 41)},
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "bad_words": ["hello"]},
    {"forced_prefix": "by", "logit_bias": {44: 2.0}, "logprobs": 2},
    {"allowed_token_ids": tuple(range(30, 38))},
]


def told(result: Any) -> list[tuple[Any, ...]]:
    return [(c.token_ids, c.text, c.finish_reason, c.score) for c in result.candidates]


@pytest.mark.parametrize("strategy", KINDS.values(), ids=KINDS)
def test_together_alone_and_streamed_are_the_same(llm: LLM, strategy: Any) -> None:
    asked = [Options(max_tokens=9, **options) for options in OPTIONS]
    together = llm.decode([PROMPT] * len(asked), strategy, options=asked)
    for options, result in zip(asked, together, strict=True):
        assert told(llm.decode(PROMPT, strategy, options=options)) == told(result)
        events = list(llm.stream(PROMPT, strategy, options=options))
        assert isinstance(events[-1], Finished)
        assert told(events[-1].result) == told(result)
        committed = tuple(t for e in events if isinstance(e, Committed) for t in e.token_ids)
        assert all(c.token_ids[: len(committed)] == committed for c in result.candidates)
        scores = [c.score for c in result.candidates]
        assert scores == sorted(scores, reverse=True)
        for candidate in result.candidates:
            if options.forced_prefix:
                assert candidate.text.startswith("by")
            if options.allowed_token_ids:
                assert set(candidate.token_ids) <= set(options.allowed_token_ids)


def test_one_group_is_a_beam(llm: LLM) -> None:
    beam = llm.decode(PROMPT, Beam(4, num_return_sequences=2), max_tokens=8)
    assert told(llm.decode(PROMPT, DiverseBeam(4, 1, num_return_sequences=2), max_tokens=8)) == told(beam)


@pytest.mark.parametrize("kind", [Beam, DiverseBeam])
def test_a_scorer_at_fault_is_told_by_its_name(llm: LLM, kind: Any) -> None:
    with pytest.raises(GroupFailedError, match=r"^scorer: the function failed: ValueError: no") as caught:
        llm.decode(PROMPT, kind(4, scorer=CustomScorer(fails)), max_tokens=4)
    assert caught.value.field == "scorer"


def fails(sums: Any, length: int, data: Any) -> Any:
    raise ValueError("no")


def test_scores_do_not_depend_on_the_prompts_length(llm: LLM) -> None:
    """What a hypothesis scores follows from its own sum and length."""
    for prompt in ("a", "a rather long prompt " * 9):
        for candidate in llm.decode(prompt, KINDS["normalised"], max_tokens=7).candidates:
            scale = ((5 + len(candidate.token_ids)) / 6) ** 0.6
            assert candidate.score == pytest.approx(candidate.selection_logprob / scale)


def test_updates_are_of_beams_and_refused_elsewhere_by_name(llm: LLM) -> None:
    assert llm.decode(PROMPT, DiverseBeam(), max_tokens=2, update_beams=3).candidates
    with pytest.raises(InvalidRequestError, match=r"^update_beams: "):
        llm.decode(PROMPT, max_tokens=2, update_beams=3)


def test_the_scorer_that_the_docs_show(llm: LLM) -> None:
    text = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text()
    [code] = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "near_twelve" in block]
    names: dict[str, Any] = {}
    exec(code.replace("\nBeam(width=8", "\nstrategy = Beam(width=8"), names)
    result = llm.decode(PROMPT, names["strategy"], max_tokens=14)
    for candidate in result.candidates:
        g = len(candidate.token_ids)
        expected = candidate.selection_logprob / g - 0.1 * abs(g - 12)
        assert candidate.score == pytest.approx(np.float64(expected), abs=1e-6)
