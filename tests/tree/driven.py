"""Tree sessions on the toy model, driven step by step in the test's own thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar

from forkdecode.config import EngineConfig
from forkdecode.engine.core import Engine
from forkdecode.engine.jobs import JobTable
from forkdecode.engine.outgoing import Outgoing
from forkdecode.engine.port import Job, Sink
from forkdecode.errors import ForkdecodeError
from forkdecode.model.info import ModelInfo
from forkdecode.requests.prepare import RequestMaker
from forkdecode.results import EngineStats
from forkdecode.scheduler.events import CandidateRecord, GroupEvent, GroupFailed, GroupFinished
from forkdecode.scheduler.preemption import PreemptionCost
from forkdecode.scheduler.request import DecodeRequest, TreeOp
from forkdecode.scheduler.scheduler import Scheduler
from forkdecode.tree.session import EngineItem, TreeSession
from forkdecode.tree_types import (
    Accepted,
    Command,
    Done,
    NodeDelta,
    NodeInfo,
    NodeStopped,
    OpenTree,
    Refused,
    TreeEvent,
    TreeLimits,
)
from forkdecode.types import Options, Strategy
from forkdecode.wire.frames import TooLongError
from forkdecode.wire.messages import Events
from forkdecode.wire.records import CODEC
from tests.llm.models import EOS_ID, TOKENIZER, VOCAB
from tests.scheduler.toy import ToyRunner

MAX_POSITIONS = 200
BLOCK = 4
MAKER = RequestMaker(
    TOKENIZER, ModelInfo("toy", len(VOCAB), MAX_POSITIONS, (EOS_ID,), ((1, 1),), (None,), "float32", 0)
)
E = TypeVar("E", bound=TreeEvent)


class InlinePort:
    """An engine that steps when it is told to. It checks every invariant after each step."""

    def __init__(self, num_blocks: int = 4096, host_slots: int = 0, **config: Any) -> None:
        settings = EngineConfig(**{"block_size": BLOCK, "watermark": 0.0, **config})
        scheduler = Scheduler(settings, num_blocks, host_slots, PreemptionCost(1.0, 1.0), b"toy")
        self.runner = ToyRunner(num_blocks, settings.block_size, host_slots, len(VOCAB), sharpness=1.0)
        self.engine = Engine(scheduler, self.runner)
        self.submitted: list[DecodeRequest] = []
        self.ops: list[TreeOp] = []
        self._jobs: dict[str, Job] = {}

    def submit(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.engine.check_request(job.request)
        for job in jobs:
            self.submitted.append(job.request)
            self._jobs[job.request.request_id] = job
            self.engine.submit(job.request)

    def cancel(self, request: DecodeRequest) -> None:
        if request.request_id in self._jobs:
            self._deliver(self.engine.cancel(request.request_id))

    def tree(self, op: TreeOp) -> None:
        self.ops.append(op)
        self.engine.tree(op)

    def stats(self) -> EngineStats:
        return self.engine.stats()

    def close(self) -> None:
        self.engine.close()

    def step(self) -> bool:
        """Whether there was anything to do."""
        if not self.engine.has_work:
            return False
        self._deliver(self.engine.step())
        self.engine.scheduler.check()
        return True

    def _deliver(self, events: Sequence[GroupEvent]) -> None:
        for event in events:
            last = isinstance(event, (GroupFinished, GroupFailed))
            job = self._jobs.pop(event.request_id) if last else self._jobs[event.request_id]
            job.sink(event)


class CrossedPort(InlinePort):
    """One whose events come as they do from an engine process. limit: bytes of a frame."""

    def __init__(self, num_blocks: int = 4096, limit: int = 2**20, **config: Any) -> None:
        super().__init__(num_blocks, **config)
        self.limit = limit
        self._outgoing = Outgoing(self)  # type: ignore[arg-type]
        self._asked = JobTable()

    def submit(self, jobs: Sequence[Job]) -> None:
        self._asked.add(jobs, self._asked.reserve(len(jobs)))
        super().submit([Job(job.request, self._crossing(job.request)) for job in jobs])

    def _crossing(self, request: DecodeRequest) -> Sink:
        return self._outgoing.sink(
            request.request_id, ended=lambda: None, cancel=lambda: super(CrossedPort, self).cancel(request)
        )

    def cancel(self, request: DecodeRequest) -> None:
        super().cancel(request)
        self._outgoing.flush()

    def step(self) -> bool:
        worked = super().step()
        self._outgoing.flush()
        return worked

    def put(self, payload: bytes) -> None:
        """As an outbox does; what it sends is there at once."""
        if len(payload) > self.limit:
            raise TooLongError(f"a message of {len(payload)} bytes; at most {self.limit}")
        message = CODEC.decode(payload)
        assert isinstance(message, Events)
        self._asked.deliver(message.events)

    def room(self) -> None:
        """There always is."""


class Driven:
    """One session and all that it has said."""

    def __init__(
        self,
        prompt: Any = "hello world",
        port: InlinePort | None = None,
        limits: TreeLimits | None = None,
        seed: int = 0,
    ) -> None:
        self.port = InlinePort() if port is None else port
        self.now = 0.0
        self.events: list[TreeEvent] = []
        self.inbox: deque[EngineItem] = deque()
        self.session = TreeSession(
            self.port,
            MAKER,
            OpenTree(prompt, seed=seed),
            block_size=BLOCK,
            emit=self.events.append,
            post=self.inbox.append,
            limits=limits,
            clock=lambda: self.now,
        )
        self._ids = 0

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def send(self, command: Command) -> list[TreeEvent]:
        """What the session says at once."""
        before = len(self.events)
        self.session.command(command)
        self.pump()
        return self.events[before:]

    def accepted(self, command: Command) -> tuple[NodeInfo, ...]:
        """The nodes of a command that must be accepted."""
        first = self.send(command)[0]
        assert isinstance(first, Accepted), first
        return first.nodes

    def refused(self, command: Command) -> ForkdecodeError:
        """Why a command that must be refused is; it must change nothing."""
        before = self.session.snapshot()
        said = self.send(command)
        assert len(said) == 1, said
        assert isinstance(said[0], Refused), said
        assert self.session.snapshot() == before
        return said[0].error

    def pump(self) -> None:
        while self.inbox:
            self.session.take(self.inbox.popleft())

    def step(self) -> bool:
        worked = self.port.step()
        self.pump()
        return worked

    def run(self) -> None:
        """Until nothing runs."""
        while self.step():
            pass
        assert not self.session.is_running

    def ran(self, command: Command) -> tuple[NodeInfo, ...]:
        """The nodes of a command, when all is done."""
        made = self.accepted(command)
        self.run()
        return tuple(self.node(info.node) for info in made)

    def node(self, number: int) -> NodeInfo:
        return next(info for info in self.session.snapshot().nodes if info.node == number)

    def path(self, number: int) -> tuple[int, ...]:
        """The tokens of a node's path, put together from what clients are told."""
        info = self.node(number)
        before = info.before_ids if info.parent is None else self.path(info.parent)
        return before + info.token_ids

    def said(self, kind: type[E], number: int | None = None) -> list[E]:
        """Events of a kind, of a node or command."""
        found = [event for event in self.events if isinstance(event, kind)]
        if number is None:
            return found
        return [e for e in found if number == getattr(e, "node", getattr(e, "command_id", None))]

    def heard(self, number: int) -> tuple[tuple[int, ...], str]:
        """A node's tokens and text as its events tell them."""
        deltas = self.said(NodeDelta, number)
        return tuple(t for d in deltas for t in d.token_ids), "".join(d.text for d in deltas)

    def check_heard(self) -> None:
        """Every node that was generated is as its events told; each was stopped once at most."""
        generated = {event.node for event in self.said(NodeDelta)}
        for info in self.session.snapshot().nodes:
            if info.node in generated:
                assert self.heard(info.node) == (info.token_ids, info.text)
        accepted = [e.command_id for e in self.said(Accepted)]
        done = [e.command_id for e in self.said(Done)]
        assert len(set(done)) == len(done)
        assert set(done) <= set(accepted)
        stops = [e.node for e in self.said(NodeStopped) if e.finish_reason is not None]
        assert len(set(stops)) == len(stops) or any(e.state == "finished" for e in self.said(NodeStopped))

    def close(self) -> None:
        """Ends the session; nothing may be left in the engine."""
        self.session.close()
        while self.port.step():
            pass
        stats = self.port.stats()
        assert (stats.used_blocks, stats.held_nodes, stats.running_groups) == (0, 0, 0)
        assert stats.free_blocks + stats.cached_blocks == stats.total_blocks


def ordinary(
    prompt: Sequence[int], strategy: Strategy, seed: int, options: Options
) -> tuple[tuple[CandidateRecord, ...], list[str]]:
    """What an ordinary request gives on an engine of its own, and its texts."""
    import dataclasses

    prepared = MAKER.prepare(list(prompt), strategy, options, {}, chat=False, request_id="alone")
    request = dataclasses.replace(prepared.request, seed=seed)
    port = InlinePort()
    ends: list[GroupEvent | ForkdecodeError] = []
    port.submit([Job(request, ends.append)])
    while port.step():
        pass
    last = ends[-1]
    assert isinstance(last, GroupFinished), last
    finished = prepared.assembler.events(last)[-1]
    return last.candidates, [c.text for c in finished.result.candidates]  # type: ignore[union-attr]
