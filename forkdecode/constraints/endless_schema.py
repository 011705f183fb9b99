"""JSON schemas that no finite JSON is valid by, because what they require requires itself again; llguidance
finds other contradictions, but not this one.

The least fixed point of "some finite value is valid", over the schemas that references lead to. What is not
understood here counts as satisfiable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

MAX_PASSES = 100
"""Over all schemas that are referred to."""
_NESTING = frozenset({"object", "array"})


def is_endless(schema: Any) -> bool:
    """Whether certainly no finite JSON is valid by it, for this reason. schema: parsed JSON."""
    if schema is False:
        return False
    known: dict[str, bool] = {"": False}
    try:
        for _ in range(MAX_PASSES):
            before = dict(known)
            for pointer in before:
                known[pointer] = known[pointer] or _finite(_find(schema, pointer), known)
            if known == before:
                return not known[""]
    except RecursionError:
        pass
    return False


def _finite(schema: Any, known: dict[str, bool]) -> bool:
    """Whether a finite value is valid by it, if `known` says so of the schemas referred to; references that
    are not in it come in as unknown, that is not yet."""
    if not isinstance(schema, Mapping):
        return schema is not False
    reference = schema.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        return known.setdefault(reference[1:], False)
    if "const" in schema or "enum" in schema:
        return True
    fits = all(_finite(each, known) for each in _list(schema.get("allOf")))
    for name in ("anyOf", "oneOf"):
        if name in schema:
            fits = fits and any(_finite(each, known) for each in _list(schema[name]))
    return fits and _of_some_type(schema, known)


def _of_some_type(schema: Mapping[str, Any], known: dict[str, bool]) -> bool:
    types = schema.get("type", "any")
    types = {types} if isinstance(types, str) else set(map(str, _list(types)))
    if not types or not types <= _NESTING:
        return True
    return ("object" in types and _object(schema, known)) or ("array" in types and _array(schema, known))


def _object(schema: Mapping[str, Any], known: dict[str, bool]) -> bool:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = [properties[name] for name in _list(schema.get("required")) if name in properties]
    return all(_finite(each, known) for each in required)


def _array(schema: Mapping[str, Any], known: dict[str, bool]) -> bool:
    least = schema.get("minItems", 0)
    if not isinstance(least, int) or least <= 0:
        return True
    first = _list(schema.get("prefixItems"))
    needed = [*first[:least], *([schema["items"]] if least > len(first) and "items" in schema else [])]
    return all(_finite(each, known) for each in needed)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _find(schema: Any, pointer: str) -> Any:
    """What a JSON pointer (RFC 6901) leads to; True, which anything is valid by, where it leads nowhere."""
    for part in pointer.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(schema, Mapping) and name in schema:
            schema = schema[name]
        elif isinstance(schema, list) and name.isdecimal() and int(name) < len(schema):
            schema = schema[int(name)]
        else:
            return True
    return schema
