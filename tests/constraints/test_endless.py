"""Grammars and schemas that nothing finite satisfies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkdecode.constraints.endless_lark import endless_rule
from forkdecode.constraints.endless_schema import is_endless

ENDLESS = [
    'start: "a" start',
    'start: x\nx: "a" y\ny: x | "b" x',
    'start: ("a" | "b") (start "c")+',
    "start: x\nx: x",
    "start: start~2",
    "start: start{1,3}",
    'start[capture="s"]: "a" start  // | "b"\n',
    '%llguidance {"no_forcing": true}\n%ignore / +/\nstart: "a"\n   start\n | "|" start # end',
    '?start: "a" x\n!x: "y" x',
    'start: %json {"type": "integer"} start',
]
ENDING = [
    'start: "a" start | "b"',
    'start: "a" start?',
    'start: "a" [start]',
    'start: start* "a"',
    "start: start~0..2",
    "start: start{0,2}",
    "start: start{,2}",
    'start: "a" start |',
    "start: A\nA: A",
    "start: unknown",
    'start: "a" <|x|>',
    "start: %lark { start: start }",
    "begin: begin",
    "start: ((",
    'start: "a" x\nx: y\ny: z\nz: "b" -> name\n',
    'start: "start: start" /start: |\\/ start/',
]


@pytest.mark.parametrize("grammar", ENDLESS)
def test_endless_rules_are_found(grammar: str) -> None:
    assert endless_rule(grammar) == "start"


@pytest.mark.parametrize("grammar", ENDING)
def test_rules_that_end_or_are_not_understood_are_left_alone(grammar: str) -> None:
    assert endless_rule(grammar) is None


Bodies = list[list[list[int]]]


@given(
    st.lists(
        st.lists(st.lists(st.integers(-1, 5), max_size=3), min_size=1, max_size=3), min_size=6, max_size=6
    )
)
def test_rules_are_endless_when_no_alternative_ends(bodies: Bodies) -> None:
    """-1 stands for a text, i for rule i; against derivations of bounded depth."""
    names = ["start", "a", "b", "c", "d", "e"]
    grammar = "\n".join(
        f"{name}: " + " | ".join(" ".join('"t"' if i < 0 else names[i] for i in way) for way in ways)
        for name, ways in zip(names, bodies, strict=True)
    )
    ends: set[int] = set()
    for _ in names:
        ends = {
            r for r, ways in enumerate(bodies) if any(all(i < 0 or i in ends for i in way) for way in ways)
        }
    assert (endless_rule(grammar) is None) == (0 in ends)


def test_a_long_chain_takes_few_passes() -> None:
    for order in (1, -1):
        rules = [f"r{i}: r{i + 1}" for i in range(5_000)][::order]
        assert endless_rule("\n".join(["start: r0", *rules, 'r5000: "x"'])) is None
        assert endless_rule("\n".join(["start: r0", *rules, "r5000: r0"])) == "start"


TREE = {"type": "object", "properties": {"next": {"$ref": "#"}}}
SCHEMAS: dict[str, tuple[Any, bool]] = {
    "required": (TREE | {"required": ["next"]}, True),
    "optional": (TREE, False),
    "any type": ({"properties": {"next": {"$ref": "#"}}, "required": ["next"]}, False),
    "or null": ({"anyOf": [{"type": "null"}, TREE | {"required": ["next"]}]}, False),
    "through definitions": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        True,
    ),
    "all of": ({"allOf": [{"type": "object"}, {"$ref": "#"}]}, True),
    "items": ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, True),
    "no items": ({"type": "array", "items": {"$ref": "#"}}, False),
    "prefix items": ({"type": "array", "prefixItems": [True, {"$ref": "#"}], "minItems": 2}, True),
    "fewer prefix items": ({"type": "array", "prefixItems": [True, {"$ref": "#"}], "minItems": 1}, False),
    "one type of two": (TREE | {"type": ["object", "string"], "required": ["next"]}, False),
    "escaped": ({"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"$ref": "#/$defs/a~1b%20c"}}}, True),
    "index": ({"anyOf": [{"$ref": "#/anyOf/1"}, {"$ref": "#/anyOf/0"}]}, True),
    "nowhere": ({"$ref": "#/nowhere"}, False),
    "elsewhere": ({"$ref": "http://x/#/a"}, False),
    "enum": ({"enum": [1], "allOf": [{"$ref": "#"}]}, False),
    "false": (False, False),
    "true": (True, False),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(name: str) -> None:
    schema, endless = SCHEMAS[name]
    assert is_endless(schema) == endless
