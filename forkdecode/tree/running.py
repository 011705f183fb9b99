"""Requests of a session that run: what their events mean for its nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from forkdecode.constraints.items import item_key
from forkdecode.errors import CancelledError, ForkdecodeError
from forkdecode.requests.score import PreparedScore
from forkdecode.results import FinishReason, TokenLogprob, Usage
from forkdecode.scheduler.events import (
    CandidateEnded,
    CandidateStuck,
    GroupEvent,
    GroupFailed,
    GroupFinished,
    TokensAppended,
)
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.tree.memory import HeldNodes
from forkdecode.tree.node import NodeTable, TreeNode
from forkdecode.tree.path import Begun, Path
from forkdecode.tree.text import NodeText
from forkdecode.tree_types import Done, NodeDelta, NodeReason, NodeScored, NodeStopped, TreeEvent

Emit: TypeAlias = Callable[[TreeEvent], None]


@dataclass(slots=True)
class RunningCommand:
    """A command that waits for `left` requests. usages, errors: of those that have ended, by their place."""

    command_id: int
    left: int
    usages: dict[int, Usage] = field(default_factory=dict)
    errors: dict[int, ForkdecodeError] = field(default_factory=dict)

    def ended(self, place: int, usage: Usage | None, error: ForkdecodeError | None) -> Done | None:
        """One request has ended. Returns the command's last event, if that was the last of them."""
        self.left -= 1
        if usage is not None:
            self.usages[place] = usage
        if error is not None:
            self.errors[place] = error
        if self.left:
            return None
        usages = tuple(self.usages[i] for i in sorted(self.usages))
        return Done(self.command_id, usages, self.errors[min(self.errors)] if self.errors else None)


class ScoreRun:
    """A score request on one node. origin: the node whose path its prompt is, if there is one."""

    def __init__(
        self,
        request: DecodeRequest,
        prepared: PreparedScore,
        node: TreeNode,
        origin: TreeNode | None,
        command_id: int,
        blocks: int,
    ) -> None:
        self.request = request
        self.node = node
        self.origin = origin
        self.blocks = blocks
        self.is_wanted = True
        self._prepared = prepared
        self._command_id = command_id

    def take(self, event: GroupEvent | ForkdecodeError, emit: Emit) -> None:
        """Tells what the engine found."""
        if isinstance(event, GroupFinished):
            scored = self._prepared.assembler.result(event).continuations
            emit(NodeScored(self._command_id, self.node.number, scored))

    def error(self, event: GroupEvent | ForkdecodeError) -> ForkdecodeError | None:
        """What the command's caller is told of an end like this."""
        return _error(event)


class DecodeRun:
    """A request that generates children of one node; child i is candidate i."""

    def __init__(
        self,
        request: DecodeRequest,
        node: TreeNode,
        children: list[TreeNode],
        texts: list[NodeText],
        begun: Begun | None,
        nodes: NodeTable,
        held: HeldNodes,
        blocks: int,
    ) -> None:
        """children: not in `nodes` yet. begun: the constraint that their tokens follow. blocks: to be
        reserved for each of them."""
        self.request = request
        self.origin: TreeNode | None = node
        self.children = children
        self.blocks = blocks * len(children)
        self._blocks_each = blocks
        self._path = node.path
        self._texts = texts
        self._begun = begun
        self._stop_ids = frozenset(request.stop_ids.tolist())
        self._nodes = nodes
        self._held = held
        self._logprobs: list[list[float]] = [[] for _ in children]
        self._wants_logprobs = request.options.logprobs is not None

    @property
    def is_wanted(self) -> bool:
        """Whether a child is still being generated."""
        return any(child.state == "generating" for child in self.children)

    def take(self, event: GroupEvent | ForkdecodeError, emit: Emit) -> None:
        """Grows and stops the children that are still being generated."""
        if isinstance(event, TokensAppended):
            self._append(event, emit)
        elif isinstance(event, CandidateEnded):
            self._end(event.candidate, event.finish_reason, event.cumulative_logprob, emit)
        elif isinstance(event, CandidateStuck):
            if self.children[event.candidate].state == "generating":
                self._cut(event.candidate, "failed", emit, error=event.error)
        elif (error := _error(event)) is not None:
            self._fail(error, _kept(event), emit)

    def stop(self, child: TreeNode, emit: Emit, *, finished: bool = False) -> None:
        """The child ends where it is; what the engine makes of it still is of no interest."""
        self._cut(self.children.index(child), "cancelled", emit, finished=finished)

    def error(self, event: GroupEvent | ForkdecodeError) -> ForkdecodeError | None:
        """What the command's caller is told: nothing of a cancellation, which was the session's own."""
        error = _error(event)
        return None if isinstance(error, CancelledError) else error

    def _append(self, event: TokensAppended, emit: Emit) -> None:
        for i, candidate in enumerate(event.candidates.tolist()):
            child = self.children[candidate]
            if child.state != "generating":
                continue
            token, logprob = int(event.token_ids[i]), float(event.logprobs[i])
            logprobs: tuple[TokenLogprob, ...] | None = None
            if self._wants_logprobs:
                top = event.top[i] if event.top is not None else ((), ())
                logprobs = (TokenLogprob(token, logprob, float(event.selection_logprobs[i]), *top),)
            text = self._texts[candidate].push(token)
            child.growing.append(token)
            child.text.append(text)
            child.cumulative_logprob += logprob
            self._logprobs[candidate].append(logprob)
            emit(NodeDelta(child.number, (token,), text, logprobs))

    def _end(self, candidate: int, reason: FinishReason, cumulative: float, emit: Emit) -> None:
        child = self.children[candidate]
        if child.state != "generating":
            return
        child.cumulative_logprob = cumulative
        why = self._complete(candidate, reason, emit)
        self._held.hold(child, child.path)
        child.state = "finished" if why == "eos" else "stopped"
        emit(NodeStopped(child.number, child.state, why, cumulative, item=child.item))

    def _fail(self, error: ForkdecodeError, kept: frozenset[int], emit: Emit) -> None:
        """kept: the children that the engine leaves their KV with, unless they were released. Of the others
        it may know no more than we do (its last word was lost), so it is told that nobody wants theirs."""
        self._held.release(
            child
            for i, child in enumerate(self.children)
            if i not in kept
            and (child.state == "generating" or child.held is child.path)
            and not child.running
        )
        why: NodeReason = "cancelled" if isinstance(error, CancelledError) else "failed"
        for i, child in enumerate(self.children):
            if child.state == "generating":
                self._cut(i, why, emit, error=None if why == "cancelled" else error)
                if i in kept:
                    self._held.hold(child, child.path)

    def _cut(
        self,
        candidate: int,
        why: NodeReason,
        emit: Emit,
        *,
        finished: bool = False,
        error: ForkdecodeError | None = None,
    ) -> None:
        child = self.children[candidate]
        self._complete(candidate, "cancelled", emit)
        child.finish_reason = why
        child.state = "finished" if finished else "stopped"
        emit(NodeStopped(child.number, child.state, why, child.cumulative_logprob, error, child.item))

    def _complete(self, candidate: int, reason: FinishReason, emit: Emit) -> NodeReason:
        """The child's path and text are whole."""
        child = self.children[candidate]
        rest, why, child.text_state = self._texts[candidate].finish(reason)
        if rest:
            child.text.append(rest)
            emit(NodeDelta(child.number, (), rest))
        if child.growing:
            child.item = item_key(self.request.constraint, child.growing)
            child.path = self._grown(child, self._logprobs[candidate], reason)
            child.growing = []
        self._nodes.settle(child)
        self._held.reserve(-self._blocks_each)
        self.blocks -= self._blocks_each
        child.finish_reason = why
        return why

    def _grown(self, child: TreeNode, logprobs: list[float], reason: FinishReason) -> Path:
        """The child's path. An EOS or stop id that ends it is none of the constraint's tokens."""
        ids, logprob = np.array(child.growing, np.int64), np.array(logprobs, np.float32)
        if self._begun is None or not (reason == "eos" or (reason == "stop" and ids[-1] in self._stop_ids)):
            return Path(self._path, ids, logprob, self._begun)
        held = Path(self._path, ids[:-1], logprob[:-1], self._begun) if len(ids) > 1 else self._path
        return Path(held, ids[-1:], logprob[-1:])


Run: TypeAlias = DecodeRun | ScoreRun


def has_ended(event: GroupEvent | ForkdecodeError) -> bool:
    """Whether it is a request's last."""
    return isinstance(event, (GroupFinished, GroupFailed, ForkdecodeError))


def usage_of(event: GroupEvent | ForkdecodeError) -> Usage | None:
    """What the request took, if the engine could tell."""
    return event.usage if isinstance(event, (GroupFinished, GroupFailed)) else None


def _kept(event: GroupEvent | ForkdecodeError) -> frozenset[int]:
    """The candidates that a group which has not finished leaves their KV with nevertheless."""
    return frozenset(event.kept) if isinstance(event, GroupFailed) else frozenset()


def _error(event: GroupEvent | ForkdecodeError) -> ForkdecodeError | None:
    if isinstance(event, GroupFailed):
        return event.error
    return event if isinstance(event, ForkdecodeError) else None
