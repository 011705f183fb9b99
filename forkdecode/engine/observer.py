"""Who wants to hear of all that decides what an engine does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from forkdecode.results import EngineStats
from forkdecode.scheduler.events import GroupEvent
from forkdecode.scheduler.request import DecodeRequest, TreeOp
from forkdecode.scheduler.scheduler import Scheduler
from forkdecode.step import StepOutput, StepPlan

Phase: TypeAlias = Literal["schedule", "execute", "commit"]


class EngineObserver(Protocol):
    """Called in the engine's thread, in the order in which things happen; all but check() must not raise.

    A step is planned(), then executed() if there was a plan, then ended(); or died() wherever it
    broke off. Arrays of a plan are the scheduler's own: they may change after the call.
    """

    def check(self, request: DecodeRequest) -> None:
        """Before a request is taken, in any thread: InvalidRequestError for one that can't be told of."""

    def added(self, request: DecodeRequest) -> None:
        """The scheduler took a request."""

    def cancelled(self, request_id: str, events: Sequence[GroupEvent]) -> None:
        """A request was cancelled between two steps."""

    def tree(self, op: TreeOp) -> None:
        """What tree nodes hold was shared or released between two steps."""

    def planned(self, plan: StepPlan | None) -> None:
        """A step was scheduled; nothing of it has run yet."""

    def executed(self, answer: StepOutput | Exception) -> None:
        """What the model answered, or how it failed; nothing of it is carried out yet."""

    def ended(self, events: Sequence[GroupEvent]) -> None:
        """The step is over."""

    def idle(self, stats: EngineStats) -> Scheduler | None:
        """After a step that left nothing to do. A scheduler to go on with, in which nothing is known of what
        was before, or None to keep the present one."""

    def died(self, phase: Phase, error: BaseException) -> None:
        """The step loop cannot go on: an error that belongs to no request."""

    def close(self, stats: EngineStats) -> None:
        """The engine ends."""
