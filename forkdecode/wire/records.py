"""The registry: every record that crosses to the engine process or goes into a journal, by its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import ModuleType

from forkdecode import choices, config, constraint_types, results, scorer_types, step, strategy_types, types
from forkdecode.allowed import AllowedSource, Constraint
from forkdecode.model import info
from forkdecode.scheduler import events, request
from forkdecode.text.stop import StopAutomaton
from forkdecode.wire import messages, requests
from forkdecode.wire.codec import Codec

MODULES = (
    types,
    strategy_types,
    scorer_types,
    constraint_types,
    config,
    results,
    step,
    choices,
    info,
    request,
    events,
    requests,
    messages,
)
"""Their frozen dataclasses, all of them but those that stay."""
STAYING = frozenset({scorer_types.CustomScorer})
"""They hold a function of a caller's: encoding one is a TypeError."""


def records_of(module: ModuleType) -> Iterator[type]:
    """The frozen dataclasses that `module` defines."""
    for value in vars(module).values():
        is_record = isinstance(value, type) and dataclasses.is_dataclass(value)
        if is_record and value.__module__ == module.__name__ and value not in STAYING:
            yield value


CODEC = Codec(
    (cls for module in MODULES for cls in records_of(module)),
    absent=frozenset({StopAutomaton, Constraint, AllowedSource}),
)
"""Stop automata and constraints are made anew, from the options, by whoever has the tokenizer."""
