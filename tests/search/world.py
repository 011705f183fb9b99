"""A synthetic world behind a real Tree: no model, branches and rewards known in advance.

What a child is depends on its parent's path, its seed and its index alone: letters, one a token.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from forkdecode.errors import EngineClosedError
from forkdecode.results import ScoredContinuation, TokenLogprob
from forkdecode.search import Branch
from forkdecode.tree_types import (
    Accepted,
    Command,
    Decode,
    Done,
    Extend,
    NodeDelta,
    NodeInfo,
    NodeReason,
    NodeScored,
    NodesPruned,
    NodeStopped,
    Prune,
    ScoreNodes,
    Stop,
    TreeEvent,
    TreeOpened,
)


@dataclass
class Place:
    """A node of the world."""

    path: str
    depth: int
    parent: int | None
    finished: bool = False
    generating: bool = False


class World:
    """A TreeLink. ends: the chance that a step ends its path. longest: tokens of the longest step; a whole
    answer has up to five times as many. stuck: children never end by themselves."""

    def __init__(self, seed: int = 0, *, ends: float = 0.2, longest: int = 6, stuck: bool = False) -> None:
        self.seed, self.ends, self.longest, self.stuck = seed, ends, longest, stuck
        self.places = {0: Place(f"{seed}:", 0, None)}
        self.tokens = self.decoded = 0
        self.pruned: set[int] = set()
        self.commands: list[Command] = []
        self._events: deque[TreeEvent] = deque(
            [TreeOpened("world", "none", seed, (NodeInfo(0, None, 0, "stopped", 0, (0,), "?", 0),))]
        )
        self._next = 1

    def send(self, command: Command) -> None:
        """Does it at once."""
        self.commands.append(command)
        if isinstance(command, Decode):
            self._decode(command)
        elif isinstance(command, Extend):
            assert isinstance(command.continuation, str)
            parent = self.places[command.node]
            info = self._add(
                command.node, parent.path + command.continuation, command.continuation, "stopped"
            )
            self._events.append(Accepted(command.command_id, (info,)))
            self._events.append(Done(command.command_id))
        elif isinstance(command, ScoreNodes):
            self._score(command)
        elif isinstance(command, Prune):
            self._prune(command)
        elif isinstance(command, Stop):
            self._events.append(Accepted(command.command_id))
            for node in command.nodes:
                if self.places[node].generating:
                    self.places[node].generating = False
                    self._events.append(NodeStopped(node, "stopped", "cancelled", -1.0))
            self._events.append(Done(command.command_id))
        else:
            raise AssertionError(command)

    def receive(self, timeout: float | None = None) -> TreeEvent:
        """The next event."""
        if self._events:
            return self._events.popleft()
        if self.stuck:
            threading.Event().wait(timeout)
            raise TimeoutError
        raise EngineClosedError("the world has nothing to say")

    def close(self) -> None:
        """Nothing is held."""

    def _add(self, parent: int, path: str, text: str, state: str) -> NodeInfo:
        number = self._next
        self._next += 1
        depth = self.places[parent].depth + 1
        self.places[number] = Place(path, depth, parent, generating=state == "generating")
        tokens = tuple(map(ord, text))
        return NodeInfo(number, parent, depth, state, 1 + len(path), tokens, text, number)  # type: ignore[arg-type]

    def _decode(self, command: Decode) -> None:
        infos, rest = [], []
        for index, node in enumerate(command.nodes):
            parent = self.places[node]
            assert not parent.finished, "a finished node is not decoded on"
            assert node not in self.pruned, "nor a pruned one"
            for i in range(command.n):
                draw = random.Random(f"{parent.path}|{command.seed(index)}|{i}")
                text, reason = self._draw(draw, command)
                info = self._add(node, parent.path + text, "", "generating")
                infos.append(info)
                self.tokens += len(text)
                self.decoded += 1
                rest.append(NodeDelta(info.node, tuple(map(ord, text)), text))
                if not self.stuck:
                    self.places[info.node].generating = False
                    self.places[info.node].finished = reason == "eos"
                    state = "finished" if reason == "eos" else "stopped"
                    rest.append(NodeStopped(info.node, state, reason, -draw.random() * len(text)))  # type: ignore[arg-type]
        self._events += [Accepted(command.command_id, tuple(infos)), *rest, Done(command.command_id)]

    def _draw(self, draw: random.Random, command: Decode) -> tuple[str, NodeReason]:
        whole = not command.step
        length = draw.randint(1, self.longest * (5 if whole else 1))
        ends = whole or draw.random() < self.ends
        text = "".join(draw.choice("abcd") for _ in range(length))
        if length > command.options.max_tokens:
            return text[: command.options.max_tokens], "length"
        return text, ("stop" if draw.random() < 0.5 else "eos") if ends else "step"

    def _score(self, command: ScoreNodes) -> None:
        self._events.append(Accepted(command.command_id))
        for node in command.nodes:
            scored = []
            for i, word in enumerate(command.continuations):
                logprob = -1.0 - (random.Random(f"{self.places[node].path}{word!r}").random())
                scored.append(
                    ScoredContinuation(i, (1,), str(word), logprob, (TokenLogprob(1, logprob, 0.0),))
                )
            self._events.append(NodeScored(command.command_id, node, tuple(scored)))
        self._events.append(Done(command.command_id))

    def _prune(self, command: Prune) -> None:
        gone = set(command.nodes)
        if command.subtree:
            for number, place in self.places.items():
                if place.parent in gone:
                    gone.add(number)
        assert not gone & self.pruned, "nothing is pruned twice"
        self.pruned |= gone
        self._events += [
            Accepted(command.command_id),
            NodesPruned(command.command_id, tuple(sorted(gone))),
            Done(command.command_id),
        ]


class AsyncWorld:
    """World for an event loop."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def send(self, command: Command) -> None:
        self.world.send(command)
        self._wake()

    async def receive(self) -> TreeEvent:
        while not self.world._events:
            self._heard = asyncio.get_running_loop().create_future()
            await self._heard
        return self.world.receive()

    async def close(self) -> None:
        """Nothing is held."""

    def abandon(self) -> None:
        """Nothing is held."""

    def _wake(self) -> None:
        heard = getattr(self, "_heard", None)
        if heard is not None and not heard.done():
            heard.set_result(None)


def reward(branch: Branch) -> float:
    """A fixed number from 0 to 1 for each text."""
    return random.Random(f"reward {branch.transcript}").random()


def rewards(branches: Sequence[Branch]) -> list[float]:
    """A batched verifier."""
    return [reward(branch) for branch in branches]


def answer(text: str) -> str | None:
    """The last letter; "d" is no answer."""
    return None if not text or text[-1] == "d" else text[-1]
