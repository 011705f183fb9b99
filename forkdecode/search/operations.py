"""What a search wants done to its tree."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from forkdecode.calls.tree import Node
from forkdecode.search.branch import Branch
from forkdecode.types import Options, Sample

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Give:
    """Extend a node by a text; the answer: the new node."""

    node: Node
    text: str


@dataclass(frozen=True, slots=True)
class Measure:
    """The answer: how many tokens a text has after a node; None where the model has no positions for them.
    Nothing is left of it."""

    node: Node
    text: str


@dataclass(frozen=True, slots=True)
class Start:
    """Children of one node. step: empty for whole ones."""

    node: Node
    sample: Sample
    step: tuple[str, ...]
    options: Options


@dataclass(frozen=True, slots=True)
class Decode:
    """All at once; the answer: a list of nodes for each. timeout: seconds after which they are stopped."""

    starts: tuple[Start, ...]
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Verify:
    """The answer: a checked score for each."""

    branches: tuple[Branch, ...]
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Prune these, with what comes after them or without; no answer."""

    nodes: tuple[Node, ...]
    subtree: bool


Operation: TypeAlias = Give | Measure | Decode | Verify | Drop
Doing: TypeAlias = Generator[Operation, Any, T]
"""Yields operations, is sent their answers, and returns a T."""
