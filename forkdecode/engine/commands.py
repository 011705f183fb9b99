"""What callers tell an engine's thread."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

from forkdecode.engine.port import Job
from forkdecode.model.prepared import PreparedModel
from forkdecode.results import EngineStats
from forkdecode.scheduler.request import DecodeRequest, TreeOp


@dataclass(frozen=True, slots=True)
class Submit:
    job: Job


@dataclass(frozen=True, slots=True)
class Cancel:
    request: DecodeRequest


@dataclass(frozen=True, slots=True)
class Tree:
    op: TreeOp


@dataclass(frozen=True, slots=True)
class Stats:
    answer: Future[EngineStats]


@dataclass(frozen=True, slots=True)
class Update:
    model: PreparedModel
    answer: Future[None]


@dataclass(frozen=True, slots=True)
class Close:
    pass


InOrder: TypeAlias = Submit | Tree | Update
Command: TypeAlias = InOrder | Cancel | Stats | Close
