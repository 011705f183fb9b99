"""An engine whose every event a test sends itself, so that nothing depends on time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from forkdecode.engine.port import Job
from forkdecode.engine.sizing import Capacity
from forkdecode.errors import CancelledError, ForkdecodeError, UnavailableError
from forkdecode.model.info import ModelInfo
from forkdecode.results import EngineStats, Usage
from forkdecode.scheduler.events import (
    CandidateRecord,
    GroupEvent,
    GroupFailed,
    GroupFinished,
    GroupStarted,
    TokensAppended,
)
from forkdecode.scheduler.request import DecodeRequest, TreeOp
from forkdecode.server.backend import Backend, EngineState, StepBell
from tests.llm.models import EOS_ID, TOKENIZER, VOCAB

USAGE = Usage(1, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0.0, 0.0, 0.0, 0.0)
WAIT = 60.0
"""Seconds after which a test that waits in vain fails."""


class Puppet:
    """An EnginePort. Requests come to `job(i)`; cancels end them at once, and are counted."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.refuses: ForkdecodeError | None = None
        self.is_down = False
        self._jobs: list[Job] = []
        self._ended: set[str] = set()
        self._changed = threading.Condition()
        self._bell = StepBell()
        self._listeners: list[Callable[[EngineState], None]] = []

    # -- EnginePort -------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[Job]) -> None:
        if self.refuses is not None:
            raise self.refuses
        with self._changed:
            self._jobs += jobs
            self._changed.notify_all()

    def cancel(self, request: DecodeRequest) -> None:
        name = request.request_id
        with self._changed:
            self.cancelled.append(name)
            self._changed.notify_all()
            job = next(job for job in self._jobs if job.request is request)
        if name not in self._ended:
            self._end(job, GroupFailed(name, CancelledError("the request was cancelled"), (), USAGE))

    def tree(self, op: TreeOp) -> None:
        return

    def stats(self) -> EngineStats:
        if self.is_down:
            raise UnavailableError("the engine is down", retry_after=1.0)
        return EngineStats(*([0] * 22))

    def close(self) -> None:
        return

    # -- what a test does -------------------------------------------------------------------------

    def job(self, number: int) -> Job:
        """The request that came as number `number`, once it is there."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._jobs) > number, WAIT)
            return self._jobs[number]

    def named(self, name: str) -> Job:
        """The request of that name, once it is there. Calls that are sent together come in any order."""

        def found() -> list[Job]:
            return [job for job in self._jobs if job.request.request_id == name]

        with self._changed:
            assert self._changed.wait_for(found, WAIT)
            return found()[0]

    def await_cancel(self, count: int = 1) -> None:
        """Waits until so many cancels have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.cancelled) >= count, WAIT)

    def start(self, job: Job) -> None:
        """Belongs to the step that follows."""
        job.sink(GroupStarted(job.request.request_id, 0))

    def step(self, job: Job, tokens: Sequence[int]) -> None:
        """One token for each candidate."""
        none = np.zeros(len(tokens), np.float32)
        candidates = np.arange(len(tokens), dtype=np.int32)
        ids = np.array(tokens, np.int64)
        job.sink(TokensAppended(job.request.request_id, candidates, ids, none, none, None))
        self._bell.ring()

    def finish(self, job: Job, *tokens: Sequence[int]) -> None:
        """The last event: a candidate for each list of tokens."""
        records = tuple(
            CandidateRecord(i, tuple(ids), "length", 0.0, 0.0, 0.0, None) for i, ids in enumerate(tokens)
        )
        self._end(job, GroupFinished(job.request.request_id, records, USAGE))

    def fail(self, job: Job, error: ForkdecodeError) -> None:
        self._end(job, error)

    def watch(self, heard: Callable[[EngineState], None]) -> None:
        self._listeners.append(heard)
        heard("serving")

    def become(self, state: EngineState) -> None:
        for heard in self._listeners:
            heard(state)

    def backend(self) -> Backend:
        info = ModelInfo("puppet", len(VOCAB), 100_000, (EOS_ID,), ((1, 8),), (None,), "float32", 0)
        return Backend(self, info, Capacity(100_000, 4, 1024, 0), TOKENIZER, self.watch, self._bell)

    def _end(self, job: Job, last: GroupEvent | ForkdecodeError) -> None:
        self._ended.add(job.request.request_id)
        job.sink(last)
        self._bell.ring()


def with_block_size(backend: Backend, size: int) -> Backend:
    """The same with blocks of another size."""
    return replace(backend, capacity=replace(backend.capacity, block_size=size))
