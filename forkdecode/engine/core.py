"""One engine: scheduler and runner joined. A step is schedule, execute, commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from forkdecode.errors import GroupFailedError
from forkdecode.scheduler.events import GroupEvent
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.scheduler.scheduler import Scheduler
from forkdecode.scheduler.stats import EngineStats
from forkdecode.step import StepOutput, StepPlan


class StepRunner(Protocol):
    """What executes a plan: the model's Runner, or a stand-in."""

    def execute(self, plan: StepPlan) -> StepOutput: ...


class Engine:
    """Not thread-safe: one thread submits, cancels and steps."""

    def __init__(self, scheduler: Scheduler, runner: StepRunner) -> None:
        self.scheduler = scheduler
        self._runner = runner

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

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
            failure = GroupFailedError(
                f"the model failed in step {plan.step}: {type(error).__name__}: {error}"
            )
            failure.__cause__ = error
            return self.scheduler.abort(failure)
        return self.scheduler.commit(output)

    def stats(self) -> EngineStats:
        return self.scheduler.stats()
