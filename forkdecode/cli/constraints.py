"""Constraints as flat fields: of flags, and of lines of a file of requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from forkdecode.checks import check_unicode
from forkdecode.constraint_types import ConstraintSpec, FromCatalogue, JsonSchema, Lark, Regex
from forkdecode.errors import InvalidRequestError, invalid
from forkdecode.text_file import UTF8

FROM_FILES = ("json_schema", "lark", "gbnf")
"""Flags whose value may be @FILE."""


def take_constraint(values: dict[str, Any]) -> ConstraintSpec | None:
    """Takes the one field that is a constraint out of `values`. Raises InvalidRequestError for two, and for
    one that is none, by the field's name."""
    found = [name for name in CONSTRAINT_FIELDS if name in values]
    if not found:
        return None
    if len(found) > 1:
        raise invalid(found[1], f"can't be combined with {found[0]}", "one constraint")
    name = found[0]
    try:
        return CONSTRAINT_FIELDS[name](values.pop(name))
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{name}: {error}", field=name, limit=error.limit) from None


def read_file(name: str, text: str) -> str:
    """The value of a flag, which stands in a file if it is @FILE. Raises InvalidRequestError."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(UTF8)
    except (OSError, ValueError) as error:
        raise invalid(name, f"{text[1:]!r} can't be read: {error}", "a text, or @FILE") from error


def _catalogue(value: object) -> FromCatalogue:
    text = check_unicode("name", value)
    name, colon, end = text.rpartition(":")
    if colon and end in ("eos", "item"):
        return FromCatalogue(name, end="item" if end == "item" else "eos")
    return FromCatalogue(text)


def _gbnf(value: Any) -> Lark:
    return Lark(value, syntax="gbnf")


CONSTRAINT_FIELDS: Mapping[str, Callable[[Any], ConstraintSpec]] = {
    "regex": Regex,
    "json_schema": JsonSchema,
    "lark": Lark,
    "gbnf": _gbnf,
    "from_catalogue": _catalogue,
}
"""What makes a constraint of each field's value."""
