"""An engine as a tree session of a caller with limits sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forkdecode.engine.port import EnginePort, Job
from forkdecode.errors import ForkdecodeError
from forkdecode.results import EngineStats
from forkdecode.scheduler.events import GroupEvent
from forkdecode.scheduler.request import DecodeRequest, TreeOp
from forkdecode.server.auth import Caller
from forkdecode.server.running import Charge, Running
from forkdecode.tree.running import has_ended


class ChargedPort:
    """What runs counts toward its caller's row tokens. Of blocks the session has a share of its own."""

    def __init__(self, engine: EnginePort, running: Running, caller: Caller, block_size: int) -> None:
        self._engine = engine
        self._running = running
        self._caller = caller
        self._block_size = block_size

    def submit(self, jobs: Sequence[Job]) -> None:
        """EnginePort.submit. Raises CapacityError and QueueFullError beyond the caller's limit too."""
        charges = [Charge(Charge.of(job.request, self._block_size).row_tokens, 0) for job in jobs]
        total = Charge(sum(charge.row_tokens for charge in charges), 0)
        self._running.take(self._caller, total)
        try:
            self._engine.submit(
                [Job(job.request, self._sink(job, charge)) for job, charge in zip(jobs, charges, strict=True)]
            )
        except BaseException:
            self._running.give_back(self._caller, total)
            raise

    def cancel(self, request: DecodeRequest) -> None:
        self._engine.cancel(request)

    def tree(self, op: TreeOp) -> None:
        self._engine.tree(op)

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def close(self) -> None:
        """The engine is the server's."""

    def _sink(self, job: Job, charge: Charge) -> Callable[[GroupEvent | ForkdecodeError], None]:
        def sink(event: GroupEvent | ForkdecodeError) -> None:
            if has_ended(event):
                self._running.give_back(self._caller, charge)
            job.sink(event)

        return sink
