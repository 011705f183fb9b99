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

from forkdecode.checks import check_bool, check_unicode, shown
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
            field, f"is not an option of strategy {strategy!r}", f"with strategy {' or '.join(owners)}"
        )
    return invalid(field, "is unknown", ", ".join((*_LINE_FIELDS, *_FIELDS[strategy], *_OPTIONS)))


def parse_line(number: int, raw: bytes, defaults: Defaults, model: str) -> Request:
    """One line of a file of requests. Raises InvalidRequestError."""
    try:
        record = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise invalid("line", f"is not JSON ({error})", "one JSON object per line, in UTF-8") from None
    if not isinstance(record, dict):
        raise invalid("line", "is not a JSON object", '{"prompt": ..., "strategy": ..., ...}')
    for field in record:
        check_unicode("line", field, "names of fields")
    prompt = _prompt_of(record)
    chat = record.get("chat", defaults.chat and isinstance(record.get("prompt"), str))
    check_bool("chat", chat)
    line_id = record.get("id")
    if line_id is not None and not _is_id(line_id):
        raise invalid("id", f"{line_id!r} is not usable", "a text or an integer")
    strategy, options = defaults.build(_json_fields(record))
    digest = _digest(model, prompt, strategy, options, chat)
    return Request(number, line_id, prompt, strategy, options, chat, digest)


def _prompt_of(record: Mapping[str, Any]) -> Prompt:
    """One prompt: a list of several is not what a line is."""
    if ("prompt" in record) == ("messages" in record):
        raise invalid("prompt", "both prompt and messages are given, or neither", "exactly one of them")
    if "messages" in record:
        messages = record["messages"]
        if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
            raise invalid(
                "messages", f"{shown(messages)} is not usable", 'a list of {"role": ..., "content": ...}'
            )
        return messages
    prompt = record["prompt"]
    ids = isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt)
    if not ids and not isinstance(prompt, str):
        raise invalid("prompt", f"{shown(prompt)} is not usable", "a text or a list of token ids")
    return prompt  # type: ignore[no-any-return]


def id_of(raw: bytes) -> str | int | None:
    """The id of a line that is no request for some other reason, where it has a usable one."""
    try:
        line_id = json.loads(raw.decode("utf-8")).get("id")
    except (ValueError, RecursionError, AttributeError):
        return None
    return line_id if _is_id(line_id) else None


def _is_id(value: Any) -> bool:
    """Whether it can be written beside a result."""
    if type(value) is int:
        return True
    try:
        check_unicode("id", value)
    except InvalidRequestError:
        return False
    return True


def _json_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """Strategy and options of a line; JSON has text keys alone, so those of logit_bias become ids."""
    values = {k: v for k, v in record.items() if k not in _LINE_FIELDS or k == "strategy"}
    bias = values.get("logit_bias")
    if isinstance(bias, dict):
        try:
            values["logit_bias"] = {int(token): value for token, value in bias.items()}
        except ValueError:
            raise invalid(
                "logit_bias", f"{bias!r} has a key that is not a token id", "{token id: number}"
            ) from None
    return values


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _digest(model: str, prompt: Prompt, strategy: Strategy, options: Options, chat: bool) -> str:
    said = {
        "model": model,
        "prompt": prompt,
        "chat": chat,
        "strategy": [type(strategy).__name__, dataclasses.asdict(strategy)],
        "options": dataclasses.asdict(options),
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
