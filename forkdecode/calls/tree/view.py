"""What a caller knows of a tree session: made of its events, in their order."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field

from forkdecode.calls.tree.history import TreeHistory
from forkdecode.calls.tree.node import Node
from forkdecode.errors import ForkdecodeError
from forkdecode.results import ScoredContinuation, Usage
from forkdecode.tree_types import (
    Accepted,
    Done,
    Exported,
    NodeDelta,
    NodeInfo,
    NodePath,
    NodeScored,
    NodesPruned,
    NodeStopped,
    Refused,
    TreeEvent,
    TreeOpened,
)


@dataclass(slots=True)
class Reply:
    """What has been heard of one command. events: its nodes', where they are wanted one by one."""

    accepted: bool = False
    done: bool = False
    error: ForkdecodeError | None = None
    nodes: list[Node] = field(default_factory=list)
    scored: dict[int, tuple[ScoredContinuation, ...]] = field(default_factory=dict)
    paths: tuple[NodePath, ...] = ()
    usages: tuple[Usage, ...] = ()
    events: deque[NodeDelta | NodeStopped] | None = None

    @staticmethod
    def of_nothing() -> Reply:
        """To what was not sent, because there was nothing to be done."""
        return Reply(accepted=True, done=True, events=deque())

    @property
    def answered(self) -> bool:
        """Whether it is known that it was accepted or refused."""
        return self.accepted or self.error is not None

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.done or self.error is not None


class TreeView:
    """Not thread-safe: whoever receives events applies them, one at a time."""

    def __init__(self) -> None:
        self.opened: TreeOpened | None = None
        self.error: ForkdecodeError | None = None
        self.nodes: dict[int, Node] = {}
        self.root: Node | None = None
        self.history = TreeHistory()
        self._replies: dict[int, Reply] = {}
        self._listeners: dict[int, deque[NodeDelta | NodeStopped]] = {}
        self._ids = itertools.count(1)

    def expect(self, *, stream: bool = False) -> tuple[int, Reply]:
        """The id of a command about to be sent, and what will hold its answers. stream: its nodes'
        events are wanted."""
        command_id, reply = next(self._ids), Reply(events=deque() if stream else None)
        self._replies[command_id] = reply
        return command_id, reply

    def forget(self, command_id: int) -> None:
        """Of a command that was never sent."""
        self._replies.pop(command_id, None)

    def fail(self, error: ForkdecodeError) -> None:
        """The session has ended: so has every command."""
        self.error = error
        for reply in self._replies.values():
            reply.error = error
        self._replies.clear()
        self._listeners.clear()

    def apply(self, event: TreeEvent) -> None:
        """Takes the next event."""
        if isinstance(event, NodeDelta):
            self._heard(event)._grow(event)
        elif isinstance(event, NodeStopped):
            node = self._heard(event)
            node._stop(event)
            self.history.stopped(node)
            self._listeners.pop(event.node, None)
        elif isinstance(event, TreeOpened):
            self.opened = event
            self._add(event.nodes)
            self.root = self.root or next((n for n in self.nodes.values() if n.parent is None), None)
        elif isinstance(event, NodesPruned):
            self._prune(event.nodes)
        else:
            self._answer(event)

    def _heard(self, event: NodeDelta | NodeStopped) -> Node:
        if event.node in self._listeners:
            self._listeners[event.node].append(event)
        return self.nodes[event.node]

    def _answer(self, event: Accepted | Refused | Done | NodeScored | Exported) -> None:
        reply = self._replies.get(event.command_id)
        if isinstance(event, Accepted):
            nodes = self._add(event.nodes)
            if reply is not None:
                reply.accepted, reply.nodes = True, nodes
                if reply.events is not None:
                    self._listeners.update((node.id, reply.events) for node in nodes)
            return
        if reply is None:  # one that was sent before the session was resumed
            return
        if isinstance(event, Refused):
            reply.error = event.error
        elif isinstance(event, Done):
            reply.done, reply.usages, reply.error = True, event.usages, event.error
            if event.error is None:
                self.history.cost(reply.nodes, event.usages)
        elif isinstance(event, NodeScored):
            reply.scored[event.node] = event.continuations
        else:
            reply.paths = event.paths
        if reply.ended:
            del self._replies[event.command_id]

    def _add(self, infos: tuple[NodeInfo, ...]) -> list[Node]:
        added = []
        session = "" if self.opened is None else self.opened.tree
        for info in infos:
            parent = None if info.parent is None else self.nodes.get(info.parent)
            node = Node(info, parent, session)
            if parent is not None:
                parent._children.append(node)
            self.nodes[info.node] = node
            added.append(node)
        self.history.came(added)
        return added

    def _prune(self, numbers: tuple[int, ...]) -> None:
        gone = [self.nodes.pop(number) for number in numbers if number in self.nodes]
        self.history.pruned(gone)
        for node in gone:
            node._pruned = True
            if node.parent is not None:
                node.parent._children.remove(node)
