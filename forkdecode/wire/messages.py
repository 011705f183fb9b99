"""What the front end and the engine process say to each other, one message a frame."""

from __future__ import annotations

from dataclasses import dataclass

from forkdecode.config import EngineConfig
from forkdecode.errors import ForkdecodeError
from forkdecode.model.info import ModelInfo
from forkdecode.results import EngineStats
from forkdecode.scheduler.events import GroupEvent
from forkdecode.scheduler.request import TreeOp
from forkdecode.wire.requests import SentRequest, SentTerms


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to a new engine process: what to load and how.

    threads None takes the cores that the process may use. scratch: a folder for files that the front
    end is to read. journal: where to write the step journal, or None. catalogues: names and files.
    journal_size, journal_keep: see engine.journal.Rotation; no size: none. beat: seconds from one Beat to the
    next. again: whether another process has served before.
    """

    model: str
    dtype: str
    device: str
    threads: int | None
    max_positions: int | None
    config: EngineConfig
    scratch: str
    journal: str | None
    catalogues: tuple[tuple[str, str], ...] = ()
    journal_size: int | None = None
    journal_keep: int = 0
    beat: float = 1.0
    again: bool = False


@dataclass(frozen=True, slots=True)
class Beat:
    """The process lives, if only to load. step_seconds: how long its step has taken; 0 between two."""

    step_seconds: float


@dataclass(frozen=True, slots=True)
class Hello:
    """The engine serves. tokenizer: a folder that transformers' AutoTokenizer can open, or None where
    the model has no tokenizer. The rest is the block pool, as Capacity has it."""

    info: ModelInfo
    tokenizer: str | None
    num_blocks: int
    block_size: int
    bytes_per_block: int
    host_slots: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine could not start; the process ends."""

    error: ForkdecodeError


@dataclass(frozen=True, slots=True)
class Submit:
    """Requests, all or none of them. number: the first one's; the others count on from it. A number is
    never used twice in the life of a process."""

    number: int
    terms: tuple[SentTerms, ...]
    requests: tuple[SentRequest, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ends the request of that number, if it still runs."""

    number: int


@dataclass(frozen=True, slots=True)
class Tree:
    """Shares or releases what tree nodes hold, in order with what else is said."""

    op: TreeOp


@dataclass(frozen=True, slots=True)
class AskStats:
    """To be answered by Stats with the same number."""

    number: int


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot between two steps."""

    number: int
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class Refused:
    """A request ended with an error before or beside its group: the queue is full, the engine closed."""

    request_id: str
    error: ForkdecodeError


@dataclass(frozen=True, slots=True)
class Events:
    """All that a step reported, of all requests, in order."""

    events: tuple[GroupEvent | Refused, ...]
