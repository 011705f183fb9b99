"""No number comes out that a schema does not allow, whatever its bounds."""

from __future__ import annotations

import json
from decimal import Decimal

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forkdecode.constraint_types import JsonSchema
from forkdecode.constraints.continued import standing
from forkdecode.constraints.grammar import Grammars
from forkdecode.constraints.schema_numbers import LARGEST, number_problem
from forkdecode.errors import InvalidRequestError
from tests.constraints.grammar_bytes import EOS, grammars

COMPILER: Grammars = grammars()
STEPS = tuple(map(Decimal, ("0", "1", "0.1", "0.01", "1e-9", "-1", "-0.1", "-0.01", "-1e-9")))
numbers = st.one_of(
    st.integers(-20, 20),
    st.integers(-200, 200).map(lambda n: n / 8),
    st.integers(-300, 300).map(lambda n: n / 100),
    st.sampled_from([LARGEST, LARGEST - 1, -LARGEST, 1e-6, -1e-6, 2**53 + 1, 10**20, -(2**63), 1e300]),
)
bounds = st.dictionaries(
    st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]), numbers, max_size=4
)


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(["number", "integer"]), first=bounds, second=bounds)
@example(kind="number", first={"exclusiveMinimum": 0, "maximum": 0.5}, second={})
@example(kind="number", first={"exclusiveMinimum": 0}, second={"maximum": 0.5})
@example(kind="number", first={"minimum": -10.5, "exclusiveMaximum": -10}, second={})
@example(kind="integer", first={"minimum": -1e25, "maximum": -1e24}, second={})
@example(kind="integer", first={"minimum": 2**53 + 1, "maximum": 2**53 + 1}, second={})
def test_what_is_allowed_is_within_all_bounds(
    kind: str, first: dict[str, float], second: dict[str, float]
) -> None:
    schema = {"type": kind, **first, **({"allOf": [second]} if second else {})}
    try:
        constraint = COMPILER.of(JsonSchema(schema))
    except InvalidRequestError:
        return
    for text in {
        format(Decimal(str(n)) + step, "f") for n in (0, *first.values(), *second.values()) for step in STEPS
    }:
        tokens = np.array([*text.encode(), EOS], np.int64)
        if standing(constraint, tokens, ends={EOS}) == "complete":
            assert all(fits(Decimal(text), kind, each) for each in (first, second)), (schema, text)


def fits(number: Decimal, kind: str, bounds: dict[str, float]) -> bool:
    at = {name: Decimal(str(bound)) for name, bound in bounds.items()}
    return (
        (kind == "number" or number == number.to_integral_value())
        and at.get("minimum", number) <= number <= at.get("maximum", number)
        and ("exclusiveMinimum" not in at or at["exclusiveMinimum"] < number)
        and ("exclusiveMaximum" not in at or number < at["exclusiveMaximum"])
    )


def test_numbers_that_are_kept_are_no_problem() -> None:
    for schema in (
        {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "integer", "exclusiveMinimum": 0, "maximum": 0.5},
        {"exclusiveMinimum": 0},
        {"properties": {"minimum": {"const": LARGEST}, "a": {"exclusiveMinimum": 0}, "b": {"maximum": 0.5}}},
        True,
    ):
        assert number_problem(schema) is None


def test_depth_is_no_fault_of_ours() -> None:
    deep = json.loads('{"allOf":[' * 300 + "{}" + "]}" * 300)
    assert number_problem(deep) is None
