"""Constraints to the protocol and back, and what is wrong with one that comes from it."""

from __future__ import annotations

import pytest
from hypothesis import given

from forkdecode.constraint_types import ConstraintSpec, FromCatalogue
from forkdecode.errors import InvalidRequestError
from forkdecode.rpc.convert_constraints import constraint_message, constraint_of
from forkdecode.rpc.fields import field_path
from forkdecode.rpc.v1 import decode_pb2 as pb
from tests.rpc.records import constraints


@given(constraints)
def test_there_and_back(constraint: ConstraintSpec) -> None:
    message = constraint_message(constraint)
    assert constraint_of(pb.Constraint.FromString(message.SerializeToString())) == constraint


def test_an_end_that_is_not_said_is_eos() -> None:
    assert constraint_of(pb.Constraint(catalogue=pb.FromCatalogue(name="a"))) == FromCatalogue("a", "eos")


WRONG = {
    "no kind": (pb.Constraint(), "constraint", "options.constraint"),
    "no pattern": (pb.Constraint(regex=""), "constraint.pattern", "options.constraint.regex"),
    "no JSON": (pb.Constraint(json_schema="{"), "constraint.schema", "options.constraint.json_schema"),
    "no grammar": (pb.Constraint(lark=""), "constraint.grammar", "options.constraint.lark"),
    "no gbnf": (pb.Constraint(gbnf=""), "constraint.grammar", "options.constraint.gbnf"),
    "no name": (
        pb.Constraint(catalogue=pb.FromCatalogue()),
        "constraint.name",
        "options.constraint.catalogue.name",
    ),
    "end": (
        pb.Constraint(catalogue=pb.FromCatalogue(name="a", end=9)),  # type: ignore[arg-type]
        "constraint.end",
        "options.constraint.catalogue.end",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_one_is_named(case: str) -> None:
    message, field, path = WRONG[case]
    with pytest.raises(InvalidRequestError) as caught:
        constraint_of(message)
    assert caught.value.field == field
    assert caught.value.limit
    request = pb.DecodeRequest(options=pb.Options(constraint=message))
    assert field_path(field, request) == path
    nodes = pb.DecodeNodes(nodes=[1], options=request.options)
    assert field_path(field, pb.TreeCommand(decode_nodes=nodes)) == f"decode_nodes.{path}"
