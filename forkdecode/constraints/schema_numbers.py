"""Numbers in a JSON schema that llguidance does not keep: found before it takes them.

It holds numbers as doubles and bounds of integers as 64-bit ones, so from 2**53 on they are rounded without a
word, and some bounds near -2**63 end the process. And an exclusive bound that is whole is taken for an
inclusive one where the other bound is less than 1 away: 0 matches {"exclusiveMinimum": 0, "maximum": 0.5}.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, TypeGuard

LARGEST = (1 << 53) - 1
"""Up to here every integer and the next one are doubles of their own."""
_INLINE = re.compile(r"%json\b\s*")
_Bound: TypeAlias = tuple[float, bool]
"""A number, and whether it is excluded itself."""


def number_problem(schema: Any) -> str | None:
    """What is wrong with a schema's numbers, in words. schema: parsed JSON. Raises RecursionError."""
    left = [schema]
    while left:
        found = left.pop()
        if isinstance(found, Mapping):
            if (bound := _taken_for_inclusive(found)) is not None:
                return f"the exclusive bound {bound:g} can't be kept: the other bound is less than 1 away"
            left.extend(found.values())
        elif isinstance(found, list):
            left.extend(found)
        elif isinstance(found, (int, float)) and abs(found) > LARGEST:
            return f"{str(found)[:50]} can't be kept exactly: only numbers between -2**53 and 2**53 can"
    return None


def schemas_within(grammar: str) -> Iterator[Any]:
    """The schemas, parsed, which %json begins in a Lark grammar."""
    for match in _INLINE.finditer(grammar):
        try:
            yield json.JSONDecoder().raw_decode(grammar, match.end())[0]
        except (ValueError, RecursionError):
            continue  # llguidance says what is wrong with it


def _taken_for_inclusive(schema: Mapping[str, Any]) -> float | None:
    lows, highs = list(_bounds(schema, "inimum")), list(_bounds(schema, "aximum"))
    if not lows or not highs or schema.get("type") == "integer":
        return None
    low, above = max(lows)
    high, below = min(highs, key=lambda bound: (bound[0], not bound[1]))
    if above and low >= 0 and low == int(low) and low < high < low + 1:
        return low
    return high if below and high <= 0 and high == int(high) and high - 1 < low < high else None


def _bounds(schema: Mapping[str, Any], name: str) -> Iterator[_Bound]:
    """On one side, those of the schemas in its allOf among them. name: without its first letter."""
    plain, exclusive = schema.get("m" + name), schema.get("exclusiveM" + name)
    if _is_number(plain):
        yield plain, exclusive is True  # as in JSON Schema's draft 4
    if _is_number(exclusive):
        yield exclusive, True
    for part in parts if isinstance(parts := schema.get("allOf"), list) else ():
        if isinstance(part, Mapping):
            yield from _bounds(part, name)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST
