"""Rows of the constraints, by kind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import torch

from forkdecode import Beam, DecodeResult, Strategy
from forkdecode.constraint_types import FromCatalogue, JsonSchema, Lark, Regex
from forkdecode.constraints.catalogue import Catalogue
from forkdecode.constraints.catalogue_build import build_catalogue
from tests.llm.models import EOS_ID, PROMPT, ids
from tests.matrix.rows import Check, Decoder, Refusal, Row, generated

FRUITS = ["apple", "apples", "banana", "cherry", "fig"]
COLOURS = ["red", "green", "blue", "black"]


def catalogues() -> dict[str, Catalogue]:
    """Of `fruits`, where one item begins another, and of `colours`, where none does."""
    return {
        "fruits": build_catalogue([ids(t) for t in FRUITS], FRUITS),
        "colours": build_catalogue([ids(t) for t in COLOURS], COLOURS),
    }


def held(llm: Decoder, strategy: Strategy, constraint: Any) -> DecodeResult:
    """One decode under a constraint that few texts follow; that it is followed is no accident."""
    return llm.decode(PROMPT, strategy, constraint=constraint, max_tokens=24)


def grammar(constraint: Any, follows: Callable[[str], object]) -> Check:
    """Every candidate's text follows it, ended by EOS, and none does without."""

    def check(llm: Decoder, strategy: Strategy) -> None:
        result = held(llm, strategy, constraint)
        assert result.candidates
        for candidate in result.candidates:
            assert follows(candidate.text), candidate.text
            assert candidate.finish_reason == "eos"
            assert candidate.token_ids[-1] == EOS_ID
        without = llm.decode(PROMPT, strategy, max_tokens=24)
        assert not any(follows(c.text) for c in without.candidates)
        assert len(set(generated(result))) == len(result.candidates) or not isinstance(strategy, Beam)

    return check


def is_json_of(*values: object) -> Callable[[str], bool]:
    def follows(text: str) -> bool:
        try:
            return json.loads(text) in values
        except ValueError:
            return False

    return follows


def by_eos(llm: Decoder, strategy: Strategy) -> None:
    result = held(llm, strategy, FromCatalogue("fruits"))
    for candidate in result.candidates:
        assert candidate.text in FRUITS
        assert candidate.item == candidate.text
        assert (candidate.finish_reason, candidate.token_ids[-1]) == ("eos", EOS_ID)


def by_item(llm: Decoder, strategy: Strategy) -> None:
    result = held(llm, strategy, FromCatalogue("colours", end="item"))
    for candidate in result.candidates:
        assert candidate.token_ids == ids(candidate.item or "")
        assert candidate.item in COLOURS
        assert candidate.finish_reason == "stop"


def function(llm: Decoder, strategy: Strategy) -> None:
    """transformers' signature; what it allows depends on what is there."""

    def alternate(batch_id: int, input_ids: torch.Tensor) -> list[int]:
        assert batch_id == 0
        even = int(input_ids[-1]) % 2 == 0
        return [61, 63, 65] if even else [60, 62, 64]

    result = llm.decode([5, 6], strategy, prefix_allowed_tokens_fn=alternate, max_tokens=5, ignore_eos=True)
    for tokens in generated(result):
        assert [t % 2 for t in tokens] == [1, 0, 1, 0, 1]
        assert set(tokens) <= set(range(60, 66))


ABD = re.compile("a[bc]d+")
STAYS = Refusal("prefix_allowed_tokens_fn", "a function cannot be sent")
ROWS = [
    Row("constraint: Regex", grammar(Regex("[0-9]{3}-[ab]"), re.compile("[0-9]{3}-[ab]").fullmatch)),
    Row(
        "constraint: JsonSchema",
        grammar(JsonSchema({"enum": ["yes", "no", 12]}), is_json_of("yes", "no", 12)),
    ),
    Row("constraint: Lark", grammar(Lark('start: "a" ("b"|"c") "d" "d"?'), ABD.fullmatch)),
    Row("constraint: Lark (gbnf)", grammar(Lark('root ::= "a" ("b" | "c") "d"', "gbnf"), ABD.fullmatch)),
    Row("constraint: FromCatalogue", by_eos),
    Row('constraint: FromCatalogue (end="item")', by_item),
    Row("prefix_allowed_tokens_fn", function, remote=STAYS),
]
