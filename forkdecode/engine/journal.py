"""The step journal: all that decides what an engine does, in order, in a file for `forkdecode replay`.

A journal holds token ids: of prompts, and of what was generated. It holds no text but stop strings
and the vocabulary's bytes, which are needed to match them.

Records are encoded in the engine's thread and written by another one (journal_writer.py).
"""

from __future__ import annotations

import dataclasses
import os
import time
import weakref
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forkdecode.calls.ranking import unranked
from forkdecode.checks import said, told
from forkdecode.config import EngineConfig
from forkdecode.engine.crossing import check_scorer
from forkdecode.engine.journal_file import frame, make_room, open_to_append
from forkdecode.engine.journal_writer import PENDING_BYTES, JournalWriter
from forkdecode.engine.observer import Phase
from forkdecode.engine.plan_image import image_of
from forkdecode.engine.rotation import HARD_LIMIT, Rotation
from forkdecode.errors import InvalidRequestError, invalid
from forkdecode.logs import get_logger
from forkdecode.model.info import ModelInfo
from forkdecode.results import EngineStats
from forkdecode.scheduler.events import GroupEvent, GroupFailed, GroupFinished
from forkdecode.scheduler.preemption import PreemptionCost
from forkdecode.scheduler.request import DecodeRequest, TreeOp
from forkdecode.scheduler.scheduler import Scheduler
from forkdecode.step import StepOutput, StepPlan
from forkdecode.text.stop import StopAutomaton
from forkdecode.text.token_bytes import TokenBytes
from forkdecode.wire.records import CODEC
from forkdecode.wire.requests import sent_request, terms_key

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Run:
    """What an engine was made of: the first record of each of its runs. A journal has several where
    the engine was started again on the same file. info: None for an engine without a model.
    version: of forkdecode. started: seconds since the epoch."""

    config: EngineConfig
    num_blocks: int
    host_slots: int
    cost: PreemptionCost
    cache_root: bytes
    info: ModelInfo | None
    version: str
    started: float

    def payload(self) -> bytes:
        """The record. What can't be read by another version stands behind what says so."""
        cost = (self.cost.recompute_per_token, self.cost.swap_per_block)
        pools = (self.num_blocks, self.host_slots)
        parts = CODEC.encode((self.config, *pools, cost, self.cache_root, self.info, self.started))
        return CODEC.encode(("run", CODEC.schema, self.version, parts))

    def scheduler(self, clock: Callable[[], float] = time.monotonic) -> Scheduler:
        """A fresh one. clock: see Scheduler."""
        layers = () if self.info is None else self.info.kv_layers
        return Scheduler(
            self.config, self.num_blocks, self.host_slots, self.cost, self.cache_root, clock, layers
        )

    @staticmethod
    def read(version: str, parts: bytes) -> Run:
        """From the record's last two parts. Raises ValueError."""
        config, num_blocks, host_slots, cost, cache_root, info, started = CODEC.decode(parts)
        return Run(config, num_blocks, host_slots, PreemptionCost(*cost), cache_root, info, version, started)


class Journal:
    """An EngineObserver that writes a file; an existing journal goes on behind its last whole record.

    Should a record fail to be written, the engine runs on: the journal ends there, and the log says why.
    rotation: when another file is begun; never by default. Raises InvalidRequestError for a file of another
    kind, OSError for one that can't be written.
    """

    def __init__(
        self, path: Path, run: Run, pending_bytes: int = PENDING_BYTES, rotation: Rotation | None = None
    ) -> None:
        self._path = path
        self._run = run
        self._pending_bytes = pending_bytes
        self._rotation = rotation
        if rotation is not None and path.exists() and path.stat().st_size >= rotation.size:
            open_to_append(path).close()  # what is no journal, or another's, stays where it is
            make_room(path, rotation.keep)
        self._begin()

    def _begin(self) -> None:
        """A run's first record. A file can be replayed by itself, so nothing is known of earlier ones."""
        file = open_to_append(self._path)
        self._size = os.fstat(file.fileno()).st_size
        self._writer = JournalWriter(file, self._pending_bytes)
        self._automata: weakref.WeakKeyDictionary[StopAutomaton, int] = weakref.WeakKeyDictionary()
        self._numbers = 0
        self._tokens: TokenBytes | None = None
        self._last: DecodeRequest | None = None
        """Of the requests of one command, whose terms are the same, the first tells them for all."""
        self._began = time.monotonic()
        self._step = 0
        self._ended = False
        self._put(self._run.payload())

    def check(self, request: DecodeRequest) -> None:
        """A replay decides as the engine did, and has no function of the caller's to do it with."""
        check_scorer(request)

    def added(self, request: DecodeRequest) -> None:
        number = None if request.automaton is None else self._automaton(request.automaton)
        strategy = unranked(request.strategy)
        options = request.options
        if options.prefix_allowed_tokens_fn is not None:
            options = dataclasses.replace(options, prefix_allowed_tokens_fn=None)
        kept = dataclasses.replace(
            request, strategy=strategy, options=options, automaton=None, constraint=None
        )
        if self._last is not None and terms_key(self._last) == terms_key(request):
            self._write("like", sent_request(kept, 0), number)
        else:
            self._write("add", kept, number)
        self._last = request

    def cancelled(self, request_id: str, events: Sequence[GroupEvent]) -> None:
        self._write("cancel", request_id, summary(events))

    def tree(self, op: TreeOp) -> None:
        self._write("tree", op)

    def planned(self, plan: StepPlan | None) -> None:
        if self._rotation is not None and self._size >= HARD_LIMIT * self._rotation.size and not self._ended:
            self._write("full")
            self._ended = True
            _log.warning("journal_full", file=str(self._path))
        self._step += 1
        image = None if plan is None else image_of(plan)
        self._write("plan", self._step, time.monotonic() - self._began, image)

    def executed(self, answer: StepOutput | Exception) -> None:
        if isinstance(answer, Exception):
            self._write("error", type(answer).__name__, said(answer))
        else:
            self._write("output", answer)

    def ended(self, events: Sequence[GroupEvent]) -> None:
        self._write("events", summary(events))

    def idle(self, stats: EngineStats) -> Scheduler | None:
        if self._rotation is None or self._size < self._rotation.size:
            return None
        self.close(stats)
        try:
            make_room(self._path, self._rotation.keep)
            self._run = dataclasses.replace(self._run, started=time.time())
            self._begin()
        except (OSError, InvalidRequestError):
            self._rotation = None
            _log.exception("journal_ended", record="rotation")
            return None
        return self._run.scheduler()

    def died(self, phase: Phase, error: BaseException) -> None:
        self._write("died", phase, type(error).__name__, said(error))

    def close(self, stats: EngineStats) -> None:
        self._write("end", stats)
        self._ended = True
        self._writer.close()

    def _automaton(self, automaton: StopAutomaton) -> int:
        """Automata are shared between requests and keep what they have worked out: a replay must share
        them in the same way for their states to have the same numbers."""
        if automaton.tokens is not self._tokens:
            self._tokens = automaton.tokens
            table = self._tokens
            packed = zlib.compress(table.flat.tobytes(), 1)
            self._write("tokens", packed, table.lengths, table.strips_first_space)
        known = self._automata.get(automaton)
        if known is None:
            known = self._automata[automaton] = self._numbers
            self._numbers += 1
        return known

    def _write(self, kind: str, *parts: Any) -> None:
        if self._ended:
            return
        try:
            self._put(CODEC.encode((kind, *parts)))
        except Exception as error:
            # A journal with a gap proves nothing.
            self._ended = True
            _log.exception("journal_ended", record=kind)
            self._put(CODEC.encode(("gap", kind, told(error))))

    def _put(self, payload: bytes) -> None:
        record = frame(payload)
        self._size += len(record)
        self._writer.put(record)


def open_journal(path: Path, run: Run, rotation: Rotation | None, *, again: bool) -> Journal | None:
    """A journal of this run. again: whether an engine has served before this one; then what it served is
    worth more than a journal that can't go on: there is none, and the log says why.

    Raises InvalidRequestError for a file that can't be written, or is of another kind.
    """
    try:
        return Journal(path, run, rotation=rotation)
    except (OSError, InvalidRequestError) as error:
        if again:
            _log.exception("journal_ended", record="run")
            return None
        if isinstance(error, InvalidRequestError):
            raise
        problem = f"{str(path)!r} can't be written: {error.strerror or said(error)}"
        raise invalid("journal", problem, "a file that can be written, on a disk with room") from error


def summary(events: Sequence[GroupEvent]) -> list[tuple[Any, ...]]:
    """Of each event its kind and request; of a last event besides what it says, times left out."""
    return [(type(event).__name__, event.request_id, *_last_words(event)) for event in events]


def _last_words(event: GroupEvent) -> tuple[Any, ...]:
    if not isinstance(event, (GroupFinished, GroupFailed)):
        return ()
    found = [
        (c.index, c.finish_reason, len(c.token_ids), _checksum(c.token_ids), c.score)
        for c in event.candidates
    ]
    return (found,) if isinstance(event, GroupFinished) else (type(event.error).__name__, found)


def _checksum(token_ids: Sequence[int]) -> int:
    return zlib.crc32(np.array(token_ids, "<i8").data)
