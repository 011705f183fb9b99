"""Constraints that callers can choose. All frozen, checked when built."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from forkdecode.checks import check_unicode, keep, shown
from forkdecode.errors import invalid

MAX_GRAMMAR_BYTES = 1 << 18
"""Of a regex, a schema or a grammar."""
CatalogueEnd: TypeAlias = Literal["eos", "item"]


def _check_source(name: str, value: object) -> str:
    text = check_unicode(name, value)
    size = len(text.encode())
    if not text:
        raise invalid(name, "is empty", "a text")
    if size > MAX_GRAMMAR_BYTES:
        raise invalid(name, f"has {size} bytes", f"at most {MAX_GRAMMAR_BYTES}")
    return text


@dataclass(frozen=True, slots=True)
class Regex:
    """The whole generated text matches `pattern` (llguidance's syntax, that of Rust's regex)."""

    pattern: str

    def __post_init__(self) -> None:
        keep(self, "pattern", _check_source)


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The generated text is JSON that is valid under `schema`: a mapping, or JSON text, kept unchanged."""

    schema: str | Mapping[str, object]

    def __post_init__(self) -> None:
        keep(self, "schema", _check_schema)


@dataclass(frozen=True, slots=True)
class Lark:
    """The generated text is derived from a grammar's `start`. syntax: "lark" (llguidance's dialect of
    Lark) or "gbnf" (the EBNF of llama.cpp)."""

    grammar: str
    syntax: Literal["lark", "gbnf"] = "lark"

    def __post_init__(self) -> None:
        keep(self, "grammar", _check_source)
        if self.syntax not in ("lark", "gbnf"):
            raise invalid("syntax", f"{shown(self.syntax)} is unknown", "'lark' or 'gbnf'")


@dataclass(frozen=True, slots=True)
class FromCatalogue:
    """The generated tokens are an item of the catalogue with this name.

    end: "eos": an end-of-sequence id follows each item, as with transformers' prefix_allowed_tokens_fn, and
    counts in scores. "item": a candidate ends with the last token of its item; then no item of the catalogue
    may be a prefix of another.
    """

    name: str
    end: CatalogueEnd = "eos"

    def __post_init__(self) -> None:
        keep(self, "name", _check_source)
        if self.end not in ("eos", "item"):
            raise invalid("end", f"{shown(self.end)} is unknown", "'eos' or 'item'")


ConstraintSpec: TypeAlias = Regex | JsonSchema | Lark | FromCatalogue
CONSTRAINTS = (Regex, JsonSchema, Lark, FromCatalogue)


def check_constraint(name: str, value: object) -> ConstraintSpec:
    """Raises InvalidRequestError for what is no constraint."""
    if not isinstance(value, CONSTRAINTS):
        allowed = ", ".join(c.__name__ for c in CONSTRAINTS)
        raise invalid(name, f"{shown(value)} is no constraint", f"one of {allowed}, or None")
    return value


def _check_schema(name: str, value: object) -> str:
    if isinstance(value, Mapping):
        try:
            value = json.dumps(dict(value), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise invalid(name, f"is not JSON: {error}", "a JSON object") from error
    text = _check_source(name, value)
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid(name, f"is not JSON: {error}", "a JSON object") from error
    if not isinstance(parsed, (dict, bool)):
        raise invalid(name, "is no schema", "a JSON object")
    return text
