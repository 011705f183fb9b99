"""One engine: scheduler and runner joined. A step is schedule, execute, commit."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import ParamSpec, Protocol, TypeAlias, TypeVar

from forkdecode.engine.observer import EngineObserver, Phase
from forkdecode.errors import causes, invalid
from forkdecode.model.prepared import PreparedModel
from forkdecode.results import EngineStats
from forkdecode.scheduler.events import GroupEvent
from forkdecode.scheduler.request import DecodeRequest, TreeOp
from forkdecode.scheduler.scheduler import Scheduler
from forkdecode.step import DeviceLostError, StepOutput, StepPlan

P = ParamSpec("P")
T = TypeVar("T")
_Running: TypeAlias = Callable[[], StepOutput] | Exception
"""What waits for a step that is launched, or why it could not be."""


class StepRunner(Protocol):
    """What executes a plan: the model's Runner, or a stand-in."""

    def execute(self, plan: StepPlan) -> StepOutput: ...

    def replace(self, model: PreparedModel) -> None: ...


class DeviceRunner(StepRunner, Protocol):
    """One whose device computes by itself, step after step as they were launched."""

    @property
    def goes_ahead(self) -> bool:
        """Whether the device still has what the step launched last draws, one token for each row of its
        logits_index, so that a step with a token_source can be launched now."""

    def launch(self, plan: StepPlan) -> Callable[[], StepOutput]:
        """Starts a step; what waits for its answer."""


class Engine:
    """Not thread-safe but for check_request: one thread submits, cancels and steps. device: the runner, where
    its device computes by itself."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner,
        observer: EngineObserver | None = None,
        device: DeviceRunner | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._runner: StepRunner | None = runner
        self._device = device
        self._ahead: _Running | None = None
        """The step that is launched and not the next to be committed."""
        self._observer = observer
        self._phase: Phase = "schedule"

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def check_request(self, request: DecodeRequest) -> None:
        """Raises CapacityError for a request that cannot be served here, whatever else runs, and
        InvalidRequestError for one that the observer cannot keep. Safe to call from any thread."""
        self.scheduler.check_request(request)
        observer = self._observer
        if observer is not None:
            observer.check(request)

    def submit(self, request: DecodeRequest) -> None:
        """Queues a request. Raises what check_request raises."""
        if self._observer is not None:
            self._observer.check(request)
        self.scheduler.add(request)
        if self._observer is not None:
            self._observer.added(request)

    def cancel(self, request_id: str) -> Sequence[GroupEvent]:
        """Ends a request between two steps; all its blocks return. Unknown ids are ignored."""
        events = self.scheduler.cancel(request_id)
        if self._observer is not None and events:
            self._observer.cancelled(request_id, events)
        return events

    def tree(self, op: TreeOp) -> None:
        """Shares or releases what nodes hold, between two steps."""
        self.scheduler.tree(op)
        if self._observer is not None:
            self._observer.tree(op)

    def update(self, model: PreparedModel) -> None:
        """Computes with another model of the same sizes from now on; only while there is no work. Keys and
        values of the one before are forgotten. Raises InvalidRequestError where a journal is written, for it
        tells of one model, and what the model's first step raises; all stays as it was then."""
        if self._observer is not None:
            raise invalid("weights", "can't change while a journal is written", "an engine without one")
        if self._runner is None:
            raise RuntimeError("the engine is closed")
        self._runner.replace(model)
        self.scheduler.forget()

    @property
    def overlaps(self) -> bool:
        """Whether the host works beside the device: what a step reports is best told while the next one is
        computed. An observer wants to see one thing after the other."""
        return self._device is not None and self._observer is None

    def step(self, beside: Callable[[], object] = lambda: None) -> Sequence[GroupEvent]:
        """Runs one step. A model that raises fails the groups of that step, and no others; but
        DeviceLostError, which would be raised by all later steps too, comes through. beside: called
        once, while the device computes, where the engine overlaps."""
        try:
            return self._step(beside)
        except BaseException as error:
            if self._observer is not None:
                self._observer.died(self._phase, error)
            raise

    def tell(self) -> Sequence[GroupEvent]:
        """What a step that overlaps has left to say, once: see Scheduler.tell."""
        return self.scheduler.tell()

    def _step(self, beside: Callable[[], object]) -> Sequence[GroupEvent]:
        if self._device is not None and self.overlaps:
            return self._overlapped(self._device, beside)
        observer = self._observer
        self._phase = "schedule"
        plan = self.scheduler.schedule()
        if observer is not None:
            observer.planned(plan)
        if plan is None:
            events = self.scheduler.drain_failures()
        else:
            answer = self._execute(plan)
            if observer is not None:
                observer.executed(answer)
            self._phase = "commit"
            scheduler = self.scheduler
            events = scheduler.abort(answer) if isinstance(answer, Exception) else scheduler.commit(answer)
        if observer is not None:
            observer.ended(events)
            if not self.scheduler.has_work:
                self.scheduler = observer.idle(self.stats()) or self.scheduler
        return events

    def _execute(self, plan: StepPlan) -> StepOutput | Exception:
        self._phase = "execute"
        if self._runner is None:
            raise RuntimeError("the engine is closed")
        return _answer(self._runner.execute, plan)

    def _overlapped(self, device: DeviceRunner, beside: Callable[[], object]) -> Sequence[GroupEvent]:
        """A step of which as much as can be is done while the device computes it, or the one before it."""
        running, self._ahead = self._ahead, None
        if running is None:
            plan = self.scheduler.schedule()
            if plan is None:
                beside()
                return self.scheduler.drain_failures()
            running = _answer(device.launch, plan)
        if device.goes_ahead and not isinstance(running, Exception):
            plan = self.scheduler.schedule_ahead()
            self._ahead = None if plan is None else _answer(device.launch, plan)
        beside()
        answer = running if isinstance(running, Exception) else _answer(running)
        if isinstance(answer, Exception):
            return self.scheduler.abort(answer)
        return self.scheduler.carry_out(answer)

    def stats(self) -> EngineStats:
        return self.scheduler.stats()

    def close(self) -> None:
        """Tells the observer that no step comes any more, and lets go of the model and the KV cache, whoever
        still holds the engine. Idempotent."""
        self._runner = self._device = self._ahead = None
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.close(self.scheduler.stats())


def _answer(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | Exception:
    """What the model says, or how it fails. Raises DeviceLostError."""
    try:
        return work(*args, **kwargs)
    except DeviceLostError:
        raise
    except Exception as error:
        forget_locals(error)
        return error


def forget_locals(error: BaseException) -> None:
    """The callers of the groups that fail get the error, and may keep it. Its frames must not keep the step's
    tensors, for want of whose memory it may have been raised."""
    for link in causes(error):
        traceback.clear_frames(link.__traceback__)
