"""One engine: scheduler and runner joined. A step is schedule, execute, commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from forkdecode.results import EngineStats
from forkdecode.scheduler.events import GroupEvent
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.scheduler.scheduler import Scheduler
from forkdecode.step import StepOutput, StepPlan


class StepRunner(Protocol):
    """What executes a plan: the model's Runner, or a stand-in."""

    def execute(self, plan: StepPlan) -> StepOutput: ...


class Engine:
    """Not thread-safe but for check_request: one thread submits, cancels and steps."""

    def __init__(self, scheduler: Scheduler, runner: StepRunner) -> None:
        self.scheduler = scheduler
        self._runner = runner

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def check_request(self, request: DecodeRequest) -> None:
        """Raises CapacityError for a request that cannot be served here, whatever else runs. Safe to
        call from any thread."""
        self.scheduler.check_request(request)

    def submit(self, request: DecodeRequest) -> None:
        """Queues a request. Raises CapacityError when it cannot be served here."""
        self.scheduler.add(request)

    def cancel(self, request_id: str) -> Sequence[GroupEvent]:
        """Ends a request between two steps; all its blocks return. Unknown ids are ignored."""
        return self.scheduler.cancel(request_id)

    def step(self) -> Sequence[GroupEvent]:
        """Runs one step. A model that raises fails the groups of that step, and no others."""
        plan = self.scheduler.schedule()
        if plan is None:
            return self.scheduler.drain_failures()
        try:
            output = self._runner.execute(plan)
        except Exception as error:
            return self.scheduler.abort(error)
        return self.scheduler.commit(output)

    def stats(self) -> EngineStats:
        return self.scheduler.stats()
