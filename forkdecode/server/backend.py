"""What stands behind a server: an engine and what must be known of its model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from forkdecode.engine.port import EnginePort
from forkdecode.engine.sizing import Capacity
from forkdecode.model.info import ModelInfo

EngineState: TypeAlias = Literal["starting", "serving", "down"]
Watch: TypeAlias = Callable[[Callable[[EngineState], None]], None]
"""Gives its argument the engine's state now and at every change, in any thread."""


def always_serving(heard: Callable[[EngineState], None]) -> None:
    """The Watch of an engine that is up as long as this process is."""
    heard("serving")


@dataclass(frozen=True, slots=True)
class Backend:
    """An engine that runs, the model that it serves, and transformers' tokenizer or None."""

    engine: EnginePort
    info: ModelInfo
    capacity: Capacity
    tokenizer: Any | None
    watch: Watch = always_serving
