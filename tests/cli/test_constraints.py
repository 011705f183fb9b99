"""Constraints from flags and from lines of requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forkdecode.cli.flags import given
from forkdecode.cli.requests import Defaults, parse_line
from forkdecode.constraint_types import ConstraintSpec, FromCatalogue, JsonSchema, Lark, Regex
from forkdecode.errors import InvalidRequestError

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FIELDS: list[tuple[dict[str, Any], ConstraintSpec]] = [
    ({"regex": "a+"}, Regex("a+")),
    ({"json_schema": json.dumps(SCHEMA)}, JsonSchema(SCHEMA)),
    ({"lark": "start: /a+/"}, Lark("start: /a+/")),
    ({"gbnf": 'root ::= "a"'}, Lark('root ::= "a"', syntax="gbnf")),
    ({"from_catalogue": "items"}, FromCatalogue("items")),
    ({"from_catalogue": "items:eos"}, FromCatalogue("items")),
    ({"from_catalogue": "items:item"}, FromCatalogue("items", end="item")),
    ({"from_catalogue": "shop:items"}, FromCatalogue("shop:items")),
    ({"from_catalogue": "shop:items:item"}, FromCatalogue("shop:items", end="item")),
]


@pytest.mark.parametrize(("fields", "wanted"), FIELDS)
def test_flags_and_lines_name_a_constraint(fields: dict[str, Any], wanted: ConstraintSpec) -> None:
    assert Defaults(given(fields)).build()[1].constraint == wanted
    line = json.dumps({"prompt": "x", **fields}).encode()
    assert parse_line(1, line, Defaults({}), "m").options.constraint == wanted


def test_a_schema_in_a_line_may_be_an_object() -> None:
    line = json.dumps({"prompt": "x", "json_schema": SCHEMA}).encode()
    assert parse_line(1, line, Defaults({}), "m").options.constraint == JsonSchema(SCHEMA)


@pytest.mark.parametrize("name", ["json_schema", "lark", "gbnf"])
def test_flags_read_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / "it"
    text = json.dumps(SCHEMA) if name == "json_schema" else "start: /a/"
    wanted = Defaults({name: text}).build()[1].constraint
    assert wanted is not None
    for encoding in ("utf-8", "utf-8-sig"):
        path.write_text(text, encoding)
        assert Defaults(given({name: f"@{path}"})).build()[1].constraint == wanted
    with pytest.raises(InvalidRequestError, match=rf"{name}: .*nothing.* can't be read"):
        given({name: f"@{tmp_path}/nothing"})


def test_a_line_s_constraint_takes_the_place_of_the_flags() -> None:
    defaults = Defaults({"regex": "a+", "strategy": "beam"})
    for fields, wanted in (({}, Regex("a+")), ({"lark": "start: /b/"}, Lark("start: /b/"))):
        line = json.dumps({"prompt": "x", "strategy": "greedy", **fields}).encode()
        assert parse_line(1, line, defaults, "m").options.constraint == wanted


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": "a", "lark": "b"}, "lark: can't be combined with regex; allowed: one constraint"),
        ({"regex": ""}, "regex: pattern: is empty"),
        ({"json_schema": "{"}, "json_schema: schema: is not JSON"),
        ({"from_catalogue": 5}, "from_catalogue: name: 5 is not a text"),
        ({"constraint": "a"}, "constraint: is unknown"),
        ({"prefix_allowed_tokens_fn": "a"}, "prefix_allowed_tokens_fn: is unknown"),
    ],
)
def test_what_is_no_constraint_is_refused_by_its_name(fields: dict[str, Any], message: str) -> None:
    line = json.dumps({"prompt": "x", **fields}).encode()
    with pytest.raises(InvalidRequestError, match=message):
        parse_line(1, line, Defaults({}), "m")


def test_requests_with_different_constraints_are_different() -> None:
    lines = [json.dumps({"prompt": "x", **fields}).encode() for fields, _ in FIELDS]
    digests = [parse_line(1, line, Defaults({}), "m").digest for line in lines]
    assert len(set(digests)) == len(FIELDS) - 1
