"""Constraints to and from the protocol."""

from __future__ import annotations

from collections.abc import Mapping

from forkdecode.constraint_types import CatalogueEnd, ConstraintSpec, FromCatalogue, JsonSchema, Lark, Regex
from forkdecode.errors import InvalidRequestError, invalid
from forkdecode.rpc.fields import named
from forkdecode.rpc.v1 import decode_pb2 as pb

_ENDS: Mapping[CatalogueEnd, pb.CatalogueEnd] = {
    "eos": pb.CATALOGUE_END_EOS,
    "item": pb.CATALOGUE_END_ITEM,
}


def constraint_message(constraint: ConstraintSpec) -> pb.Constraint:
    """As it is sent."""
    match constraint:
        case Regex():
            return pb.Constraint(regex=constraint.pattern)
        case JsonSchema():
            return pb.Constraint(json_schema=str(constraint.schema))
        case Lark():
            text = constraint.grammar
            return pb.Constraint(lark=text) if constraint.syntax == "lark" else pb.Constraint(gbnf=text)
        case FromCatalogue():
            catalogue = pb.FromCatalogue(name=constraint.name, end=_ENDS[constraint.end])
            return pb.Constraint(catalogue=catalogue)


def constraint_of(message: pb.Constraint) -> ConstraintSpec:
    """Raises InvalidRequestError for "constraint", or a part of it such as "constraint.pattern"."""
    try:
        return _constraint(message)
    except InvalidRequestError as error:
        if error.field != "constraint":
            error.field = f"constraint.{error.field}"
        raise


def _constraint(message: pb.Constraint) -> ConstraintSpec:
    match message.WhichOneof("kind"):
        case "regex":
            return Regex(message.regex)
        case "json_schema":
            return JsonSchema(message.json_schema)
        case "lark":
            return Lark(message.lark)
        case "gbnf":
            return Lark(message.gbnf, "gbnf")
        case "catalogue":
            number = message.catalogue.end or pb.CATALOGUE_END_EOS
            return FromCatalogue(message.catalogue.name, named("end", pb.CatalogueEnd, _ENDS, number))
        case _:
            kinds = ", ".join(field.name for field in pb.Constraint.DESCRIPTOR.fields)
            raise invalid("constraint", "is of no kind", f"one of {kinds}")
