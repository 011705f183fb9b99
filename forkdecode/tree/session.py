"""A tree session: commands in, events of nodes out, ordinary requests to an engine between."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from forkdecode.engine.port import EnginePort, Job
from forkdecode.errors import ForkdecodeError, invalid
from forkdecode.requests.prepare import RequestMaker
from forkdecode.scheduler.events import GroupEvent
from forkdecode.scheduler.request import Release
from forkdecode.tree.constrained import Constraints
from forkdecode.tree.effort import Effort, effort, snapshot_effort
from forkdecode.tree.growth import Growth
from forkdecode.tree.memory import HeldNodes
from forkdecode.tree.node import NodeTable, TreeNode
from forkdecode.tree.plans import Plans
from forkdecode.tree.running import DecodeRun, Emit, Run, RunningCommand, ScoreRun, has_ended, usage_of
from forkdecode.tree_types import (
    MAX_EXPORTED_TOKENS,
    Accepted,
    Command,
    Decode,
    Done,
    Export,
    Exported,
    Extend,
    Finish,
    Fork,
    Import,
    NodesPruned,
    NodeStopped,
    OpenTree,
    Pin,
    Prune,
    Refused,
    ScoreNodes,
    Stop,
    TreeEvent,
    TreeLimits,
    TreeOpened,
    Truncate,
    Unpin,
)
from forkdecode.types import FRESH_SEEDS


@dataclass(frozen=True, slots=True)
class EngineItem:
    """An engine's event of one of a session's requests, on its way to TreeSession.take()."""

    run: Run
    event: GroupEvent | ForkdecodeError


Post: TypeAlias = Callable[[EngineItem], None]


class TreeSession:
    """One tree. Not thread-safe: whoever drives it calls one method at a time.

    emit: takes events, within command() and take(). post: takes an engine's events in a thread of the
    engine's, must not block, and sees to it that take() gets them in order. clock: seconds.
    """

    def __init__(
        self,
        port: EnginePort,
        requests: RequestMaker,
        opening: OpenTree,
        *,
        block_size: int,
        emit: Emit,
        post: Post,
        limits: TreeLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises InvalidRequestError for a wrong prompt."""
        limits = self._limits = TreeLimits() if limits is None else limits
        self.name = f"tree-{uuid.uuid4().hex[:16]}"
        self.seed = secrets.randbelow(FRESH_SEEDS) if opening.seed is None else opening.seed
        self._port = port
        self._model = requests.info
        self._block_size = block_size
        self._emit = emit
        self._post = post
        self._clock = clock
        self._nodes = NodeTable()
        self._held = HeldNodes(self.name, port, limits, block_size, clock)
        constraints = Constraints(requests)
        growth = self._growth = Growth(requests, self._nodes, self._held, constraints, limits)
        salt = opening.cache_salt
        self._plans = Plans(self.name, requests, self._nodes, self._held, growth, constraints, salt)
        self._commands: dict[int, RunningCommand] = {}
        self._runs: dict[Run, tuple[RunningCommand, int]] = {}
        self._closed = False
        self.last_used = clock()
        if opening.prompt is not None:
            self._growth.root(requests.tokenize(opening.prompt, chat=opening.chat), self.seed)

    @property
    def is_running(self) -> bool:
        """Whether a request of it runs or waits."""
        return bool(self._runs)

    @property
    def num_nodes(self) -> int:
        """Live nodes."""
        return len(self._nodes)

    @property
    def held_nodes(self) -> int:
        """Nodes that may hold KV."""
        return self._held.count

    @property
    def blocks(self) -> int:
        """Unique blocks that its nodes and requests may refer to, as max_blocks counts them."""
        return self._held.blocks

    def snapshot(self) -> TreeOpened:
        """The session as it is: a client's first event, and a use of it."""
        self.last_used = self._clock()
        nodes = tuple(self._growth.info(node) for node in self._nodes)
        return TreeOpened(
            self.name,
            self._model.name,
            self.seed,
            nodes,
            self._limits,
            block_size=self._block_size,
            max_positions=self._model.max_positions,
        )

    def snapshot_effort(self) -> Effort:
        """What snapshot() makes do."""
        return snapshot_effort(self._nodes)

    def effort(self, command: Command, size: int, enough: int) -> Effort:
        """What command() makes do, of a command of `size` bytes; it need not be told beyond `enough`."""
        return effort(command, size, self._nodes, enough)

    def command(self, command: Command) -> None:
        """Carries out a command, or refuses it: that is an event."""
        self.last_used = self._clock()
        self._held.expire()
        try:
            if command.command_id in self._commands:
                raise invalid("command_id", f"{command.command_id} still runs", "an id of no running command")
            self._carry_out(command)
        except ForkdecodeError as error:
            self._emit(Refused(command.command_id, error))

    def take(self, item: EngineItem) -> None:
        """What the engine said of one of its requests."""
        run, event = item.run, item.event
        if self._closed or run not in self._runs:
            return
        self.last_used = self._clock()
        run.take(event, self._emit)
        if has_ended(event):
            self._ended(run, event)

    def expire(self) -> None:
        """Lets idle nodes give up their KV after the idle TTL; commands do it too."""
        self._held.expire()

    def close(self) -> None:
        """Cancels what runs and frees all that the engine holds. Emits nothing. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for run in self._runs:
            self._port.cancel(run.request)
        self._port.tree(Release(self.name))

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Decode):
            self._start(command, *self._plans.decode(command))
        elif isinstance(command, ScoreNodes):
            self._start(command, (), self._plans.score(command))
        elif isinstance(command, (Fork, Extend, Truncate, Import)):
            made = self._growth.make(command)
            self._accept(command, made)
        elif isinstance(command, Export):
            chosen = self._nodes.all(command.nodes, at_rest=True)
            self._growth.check_tokens(sum(node.path.length for node in chosen), MAX_EXPORTED_TOKENS)
            paths = tuple(map(self._growth.export, chosen))
            self._accept(command, events=(Exported(command.command_id, paths),))
        elif isinstance(command, Prune):
            self._prune(command)
        elif isinstance(command, Pin):
            self._pin(command, float("inf") if command.ttl is None else self._clock() + command.ttl)
        elif isinstance(command, Unpin):
            self._pin(command, float("-inf"))
        else:
            self._stop(command)

    def _accept(
        self, command: Command, made: list[TreeNode] | tuple[()] = (), events: tuple[TreeEvent, ...] = ()
    ) -> None:
        self._emit(Accepted(command.command_id, tuple(map(self._growth.info, made))))
        for event in events:
            self._emit(event)
        self._emit(Done(command.command_id))

    def _start(self, command: Decode | ScoreNodes, made: list[TreeNode] | tuple[()], runs: list[Run]) -> None:
        """Sends a command's requests, all or none, and then makes its nodes."""
        self._port.submit([Job(run.request, self._sink(run)) for run in runs])
        for node in made:
            self._nodes.add(node)
        waiting = self._commands[command.command_id] = RunningCommand(command.command_id, len(runs))
        for place, run in enumerate(runs):
            self._runs[run] = (waiting, place)
            self._held.reserve(run.blocks)
            if run.origin is not None:
                run.origin.running += 1
                self._held.hold(run.origin, run.origin.path)
            if run.origin is not None and isinstance(command, Decode) and command.draws:
                run.origin.had_seed(command.seed(place))
        self._emit(Accepted(command.command_id, tuple(map(self._growth.info, made))))

    def _sink(self, run: Run) -> Callable[[GroupEvent | ForkdecodeError], None]:
        post = self._post
        return lambda event: post(EngineItem(run, event))

    def _ended(self, run: Run, event: GroupEvent | ForkdecodeError) -> None:
        waiting, place = self._runs.pop(run)
        if run.origin is not None:
            run.origin.running -= 1
        self._held.reserve(-run.blocks)
        done = waiting.ended(place, usage_of(event), run.error(event))
        if done is not None:
            del self._commands[done.command_id]
            self._emit(done)

    def _prune(self, command: Prune) -> None:
        chosen = self._nodes.all(command.nodes)
        gone = self._nodes.with_descendants(chosen) if command.subtree else chosen
        self._emit(Accepted(command.command_id))
        for node in gone:
            if node.state == "generating":
                node.state, node.finish_reason = "stopped", "pruned"
                self._emit(NodeStopped(node.number, "stopped", "pruned", node.cumulative_logprob))
            self._nodes.remove(node)
        self._held.release(gone)
        numbers = tuple(node.number for node in gone)
        gone_numbers = set(numbers)
        for run in self._runs:
            if isinstance(run, ScoreRun) and run.node.number in gone_numbers:
                run.is_wanted = False
        self._cancel_unwanted()
        self._emit(NodesPruned(command.command_id, numbers))
        self._emit(Done(command.command_id))

    def _stop(self, command: Stop | Finish) -> None:
        chosen = self._nodes.all(command.nodes)
        finish = isinstance(command, Finish)
        self._emit(Accepted(command.command_id))
        generating = {node for node in chosen if node.state == "generating"}
        for run in self._runs:
            if isinstance(run, DecodeRun):
                for child in generating.intersection(run.children):
                    run.stop(child, self._emit, finished=finish)
        if finish:
            for node in chosen:
                if node.state != "finished":
                    node.state = "finished"
                    reason, logprob = node.finish_reason, node.cumulative_logprob
                    self._emit(NodeStopped(node.number, "finished", reason, logprob, item=node.item))
        self._held.release(chosen if finish else generating)
        self._cancel_unwanted()
        self._emit(Done(command.command_id))

    def _cancel_unwanted(self) -> None:
        """Ends requests none of whose children is generated any more, and scores of pruned nodes."""
        for run in self._runs:
            if not run.is_wanted:
                self._port.cancel(run.request)

    def _pin(self, command: Pin | Unpin, until: float) -> None:
        for node in self._nodes.all(command.nodes):
            node.pinned_until = until
        self._accept(command)
