"""Requests as flat fields, from flags or from a line of JSON, to strategies and options.

A line is {"prompt": text or token ids, "strategy": "beam", "width": 4, "max_tokens": 32, ...} or
{"messages": [...], ...}, with an optional "id" and "chat". Flags are the defaults of its fields.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from forkdecode.checks import check_bool
from forkdecode.cli.constraints import CONSTRAINT_FIELDS, take_constraint
from forkdecode.cli.scorers import read_scorer
from forkdecode.errors import InvalidRequestError, invalid
from forkdecode.types import (
    BEAM_OPTIONS,
    BEAMS,
    LOCAL_OPTIONS,
    OPTION_NAMES,
    Beam,
    BestOf,
    DiverseBeam,
    Greedy,
    Options,
    Prompt,
    Sample,
    StochasticBeam,
    Strategy,
    make_options,
)

Values: TypeAlias = Mapping[str, Any]
STRATEGIES: Mapping[str, type[Strategy]] = {
    "greedy": Greedy,
    "sample": Sample,
    "best-of": BestOf,
    "beam": Beam,
    "diverse-beam": DiverseBeam,
    "stochastic-beam": StochasticBeam,
}
_FIELDS = {name: tuple(f.name for f in fields(kind)) for name, kind in STRATEGIES.items()}
_CODE = ("constraint", *LOCAL_OPTIONS)
_OPTIONS = (*(name for name in OPTION_NAMES if name not in _CODE), *CONSTRAINT_FIELDS)
"""Those of a line or a flag: constraints are fields of their own."""
_LINE_FIELDS = ("id", "prompt", "messages", "chat", "strategy")


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a file. digest: of all that decides its result, seed and model included."""

    line: int
    id: str | int | None
    prompt: Prompt
    strategy: Strategy
    options: Options
    chat: bool
    digest: str


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the flags say, for every request that doesn't say otherwise."""

    values: Values
    chat: bool = False

    def build(self, values: Values | None = None) -> tuple[Strategy, Options]:
        """Raises InvalidRequestError naming a field that is unknown, out of range, or of another strategy."""
        own = dict(values or {})
        default_name = self.values.get("strategy", "greedy")
        name = own.pop("strategy", default_name)
        if not isinstance(name, str) or name not in STRATEGIES:
            raise invalid("strategy", f"{name!r} is unknown", ", ".join(STRATEGIES))
        inherited = {k: v for k, v in self.values.items() if k != "strategy"}
        if name != default_name:  # flags of one strategy say nothing of another
            inherited = {k: v for k, v in inherited.items() if k in _OPTIONS}
            if STRATEGIES[name] not in BEAMS:
                inherited = {k: v for k, v in inherited.items() if k not in BEAM_OPTIONS}
        if any(k in CONSTRAINT_FIELDS for k in own):
            inherited = {k: v for k, v in inherited.items() if k not in CONSTRAINT_FIELDS}
        merged = inherited | own
        constraint = take_constraint(merged)
        options = {k: v for k, v in merged.items() if k in _OPTIONS}
        if constraint is not None:
            options["constraint"] = constraint
        rest = {k: v for k, v in merged.items() if k not in _OPTIONS}
        for field in rest:
            if field not in _FIELDS[name]:
                raise _misplaced(field, name)
        if "scorer" in rest:
            rest["scorer"] = read_scorer(rest["scorer"])
        return STRATEGIES[name](**rest), make_options(options)


def _misplaced(field: str, strategy: str) -> InvalidRequestError:
    owners = [name for name, names in _FIELDS.items() if field in names]
    if owners:
        return invalid(
            field, f"is no option of strategy {strategy!r}", f"with strategy {' or '.join(owners)}"
        )
    return invalid(field, "is unknown", ", ".join((*_LINE_FIELDS, *_FIELDS[strategy], *_OPTIONS)))


def parse_line(number: int, raw: bytes, defaults: Defaults, model: str) -> Request:
    """One line of a file of requests. Raises InvalidRequestError."""
    try:
        record = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise invalid("line", f"is not JSON ({error})", "one JSON object a line, in UTF-8") from None
    if not isinstance(record, dict):
        raise invalid("line", "is not a JSON object", '{"prompt": ..., "strategy": ..., ...}')
    if ("prompt" in record) == ("messages" in record):
        raise invalid("prompt", "and messages are both there or both missing", "one of them")
    if "messages" in record and not isinstance(record["messages"], list):
        raise invalid("messages", "is not a list", 'a list of {"role": ..., "content": ...}')
    chat = record.get("chat", defaults.chat and isinstance(record.get("prompt"), str))
    check_bool("chat", chat)
    line_id = record.get("id")
    if isinstance(line_id, bool) or not isinstance(line_id, (str, int, type(None))):
        raise invalid("id", f"{line_id!r} is not usable", "a text or an integer")
    prompt = record["prompt"] if "prompt" in record else record["messages"]
    strategy, options = defaults.build(_json_fields(record))
    digest = _digest(model, prompt, strategy, options, chat)
    return Request(number, line_id, prompt, strategy, options, chat, digest)


def id_of(raw: bytes) -> str | int | None:
    """The id of a line that is no request for some other reason, where it has a usable one."""
    try:
        line_id = json.loads(raw.decode("utf-8")).get("id")
    except (ValueError, RecursionError, AttributeError):
        return None
    return line_id if isinstance(line_id, (str, int)) and not isinstance(line_id, bool) else None


def _json_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """Strategy and options of a line; JSON has text keys alone, so those of logit_bias become ids."""
    values = {k: v for k, v in record.items() if k not in _LINE_FIELDS or k == "strategy"}
    bias = values.get("logit_bias")
    if isinstance(bias, dict):
        try:
            values["logit_bias"] = {int(token): value for token, value in bias.items()}
        except ValueError:
            raise invalid(
                "logit_bias", f"{bias!r} has a key that is no token id", "{token id: number}"
            ) from None
    return values


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _digest(model: str, prompt: Prompt, strategy: Strategy, options: Options, chat: bool) -> str:
    said = {
        "model": model,
        "prompt": prompt,
        "chat": chat,
        "strategy": [type(strategy).__name__, dataclasses.asdict(strategy)],
        "options": dataclasses.asdict(options),
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
