"""Constraints as records: what is none is refused by the field's name."""

from __future__ import annotations

from typing import Any

import pytest

from forkdecode.constraint_types import FromCatalogue, JsonSchema, Lark, Regex
from forkdecode.errors import InvalidRequestError


def nested(depth: int) -> dict[str, Any]:
    """A schema of lists in lists."""
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def circular() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    schema["items"] = schema
    return schema


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (nested(20_000), "is not JSON"),
        ('{"items":' * 20_000 + "{}" + "}" * 20_000, "is not JSON"),
        (circular(), "is not JSON: Circular"),
        ({"const": float("nan")}, "is not JSON"),
        ({"const": {1, 2}}, "is not JSON"),
        ({"const": "\ud800"}, None),
        ("[1]", "is no schema"),
        ("{", "is not JSON"),
        ("", "is empty"),
        (None, "is not a text"),
        ({"title": "x" * (1 << 18)}, "has 262"),
    ],
    ids=[
        "deep",
        "deep text",
        "circular",
        "nan",
        "set",
        "surrogate",
        "list",
        "cut off",
        "empty",
        "none",
        "large",
    ],
)
def test_schemas_that_are_none(schema: Any, why: str | None) -> None:
    if why is None:
        JsonSchema(schema)  # an escape, as JSON has it
        return
    with pytest.raises(InvalidRequestError, match=why) as error:
        JsonSchema(schema)
    assert error.value.field == "schema"
    assert error.value.limit is not None


@pytest.mark.parametrize("wrong", [None, 5, "", b"a", "\ud800", ["a"]])
def test_texts_that_are_none(wrong: Any) -> None:
    for make, field in ((Regex, "pattern"), (Lark, "grammar"), (FromCatalogue, "name")):
        with pytest.raises(InvalidRequestError) as error:
            make(wrong)
        assert error.value.field == field
