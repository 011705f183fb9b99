"""Constraints that cannot be met, are none, or are far too much, and the path by which each must be named."""

from __future__ import annotations

import math
import random
from typing import Any

from forkdecode.results import ServedModel
from forkdecode.rpc.v1 import decode_pb2 as pb

SOURCES = ("regex", "json_schema", "lark", "gbnf")
"""The kinds that are a text."""
_WRONG: dict[str, tuple[str, ...]] = {
    "regex": ("", "(", "[z-a]", "a{3,1}", "\\p{Nonsense}", "(?=a)", "a" * 300_000),
    "json_schema": (
        "",
        "{",
        "[]",
        "null",
        '"object"',
        "[" * 5000,
        '{"type": "nonsense"}',
        '{"$ref": "#/nowhere"}',
        '{"$ref": "http://127.0.0.1:9/schema.json"}',
        '{"enum": []}',
        '{"type": "string", "pattern": "("}',
        '{"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}',
        '{"type": "integer", "minimum": 5, "maximum": 4}',
        '{"description": "' + "x" * 300_000 + '"}',
    ),
    "lark": (
        "",
        "start",
        "begin: /a/",
        "start: unknown",
        "start: /(/",
        "start: start",
        'start: "a" start',
        "start: " + "(" * 2000 + '"a"' + ")" * 2000,
        "\0",
        "x" * 300_000,
    ),
    "gbnf": ("", "root", 'start ::= "a"', "root ::= unknown", 'root ::= "a', "root ::= root", "x" * 300_000),
}
_RANDOM: dict[str, tuple[str, ...]] = {
    "regex": (
        "a+",
        "(ab|cd)*",
        "[0-9]{1,40}",
        "(((a{99}){99}){99}){99}",
        ".*",
        "(a*)*b",
        "\\w+@\\w+",
        "(?i)yes|no",
        "\U0001f600{2}",
    ),
    "json_schema": (
        "{}",
        "true",
        "false",
        '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}',
        '{"enum": ["a", 1, null]}',
        '{"type": "array", "items": {"type": "string"}, "minItems": 4000000000}',
        '{"type": "string", "maxLength": 100000}',
        '{"oneOf": [{"type": "null"}, {"type": "boolean"}]}',
    ),
    "lark": ('start: "a" | "b"', "start: /[a-z]+/", 'start: ("x" start)?', "start: %json {}"),
    "gbnf": ('root ::= "a" | "b"', "root ::= [a-z]+", 'root ::= ("x" root)?'),
}
_NAMES = ("", "nowhere", "../../items", "items\0", "\U0001f600" * 1000, "x" * 300_000)


def wrong_constraint(rng: random.Random, model: ServedModel, options: pb.Options) -> str:
    """Sets one that no server can meet; the path that is to be named."""
    constraint = options.constraint
    kinds = SOURCES if model.has_tokenizer else ()
    match rng.choice((*kinds, "catalogue", "end", "unset")):
        case "catalogue":
            constraint.catalogue.name = rng.choice(_NAMES)
            return "options.constraint.catalogue.name"
        case "end":
            constraint.catalogue.name = rng.choice((*model.catalogues, "nowhere"))
            catalogue: Any = constraint.catalogue  # its type knows no wrong ends
            catalogue.end = rng.choice((3, 99, -1, 2**31 - 1, -(2**31)))
            return "options.constraint.catalogue.end"
        case "unset":
            constraint.SetInParent()
            return "options.constraint"
        case kind:
            setattr(constraint, kind, rng.choice(_WRONG[kind]))
            return f"options.constraint.{kind}"


def any_constraint(rng: random.Random, model: ServedModel, options: pb.Options) -> None:
    """Sets one that may be met: right, or a right one with some changes."""
    kind = rng.choice((*SOURCES, "catalogue"))
    if kind == "catalogue":
        catalogue: Any = options.constraint.catalogue  # its type knows no numbers
        catalogue.name = rng.choice((*model.catalogues, "nowhere"))
        catalogue.end = rng.choice((0, 1, 2))
        return
    text = list(rng.choice((*_RANDOM[kind], *_RANDOM[kind], *_WRONG[kind])))
    for _ in range(rng.choice((0, 0, 1, 3))):
        at = rng.randrange(len(text) + 1)
        text[at : at + rng.randrange(2)] = rng.choice('(){}[]*+?|\\/":,0a\n\0é')
    setattr(options.constraint, kind, "".join(text))


_NO_NUMBER = (math.nan, math.inf, -math.inf)


def wrong_scorer(rng: random.Random, name: str, beam: Any) -> str:
    """Spoils what ranks a beam's hypotheses; the path that is to be named. name: of the strategy."""
    scorer = beam.scorer
    match rng.randrange(5):
        case 0:
            scorer.SetInParent()
            return f"{name}.scorer"
        case 1:
            scorer.length_normalised.alpha = rng.choice((*_NO_NUMBER, 101.0, -1e300))
            return f"{name}.scorer.length_normalised.alpha"
        case 2:
            scorer.contrastive.baseline.append(-1.0)
            scorer.contrastive.weight = rng.choice((*_NO_NUMBER, 10001.0, -1e300))
            return f"{name}.scorer.contrastive.weight"
        case 3:
            baseline = rng.choice(([], [math.nan], [-1.0, math.inf], [1e7], [-1.0] * 65_537))
            scorer.contrastive.baseline.extend(baseline)
            scorer.contrastive.SetInParent()
            return f"{name}.scorer.contrastive.baseline"
        case _:
            scorer.length_normalised.SetInParent()
            beam.length_penalty = rng.choice((0.0, 2.0, -1.0))
            return f"{name}.length_penalty"
