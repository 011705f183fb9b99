"""What stands behind a server: an engine and what must be known of its model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from forkdecode.constraints.catalogues import Catalogues
from forkdecode.engine.port import EnginePort
from forkdecode.engine.sizing import Capacity
from forkdecode.engine.supervisor import EngineState
from forkdecode.model.info import ModelInfo

__all__ = ["Backend", "EngineState", "StepBell", "Watch", "always_serving"]

Watch: TypeAlias = Callable[[Callable[[EngineState], None]], None]
"""Gives its argument the engine's state now and at every change, in any thread."""


def always_serving(heard: Callable[[EngineState], None]) -> None:
    """The Watch of an engine that is up as long as this process is."""
    heard("serving")


class StepBell:
    """Rung by an engine's thread when the sinks have got all that a step reported."""

    def __init__(self) -> None:
        self._heard: Callable[[], None] = lambda: None

    def ring(self) -> None:
        """From any thread; never blocks."""
        self._heard()

    def connect(self, heard: Callable[[], None]) -> None:
        """Who is to hear it, before there are any requests."""
        self._heard = heard


@dataclass(frozen=True, slots=True)
class Backend:
    """An engine that runs, the model that it serves, and transformers' tokenizer or None.

    bell: rung after each step, so that its events are taken as a whole; without one they are taken as
    they come, and a step may be sent in pieces. catalogues: what constraints may be from.
    """

    engine: EnginePort
    info: ModelInfo
    capacity: Capacity
    tokenizer: Any | None
    watch: Watch = always_serving
    bell: StepBell | None = None
    catalogues: Catalogues | None = None
