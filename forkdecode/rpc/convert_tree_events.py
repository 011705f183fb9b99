"""Events of tree sessions to and from the protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forkdecode.rpc.convert_tree_commands import limits_message, limits_of
from forkdecode.rpc.convert_tree_nodes import (
    REASONS,
    STATES,
    node_message,
    node_of,
    node_reason_of,
    path_message,
    path_of,
    state_of,
)
from forkdecode.rpc.records import (
    logprob_message,
    logprob_of,
    scored_message,
    scored_of,
    usage_message,
    usage_of,
)
from forkdecode.rpc.status import error_message, told_error
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.tree_types import (
    Accepted,
    Done,
    Exported,
    NodeDelta,
    NodeScored,
    NodesPruned,
    NodeStopped,
    Refused,
    TreeEvent,
    TreeLimits,
    TreeOpened,
)

Asked = Mapping[int, pb.TreeCommand]


def tree_event(events: Sequence[TreeEvent], asked: Asked | None = None) -> pb.TreeEvent:
    """One message of one step's events, or of several steps'. asked: the commands that are refused
    among them, by the event's place, so that the field at fault is named by its path there."""
    commands = asked or {}
    changes = [change_message(event, commands.get(place)) for place, event in enumerate(events)]
    return pb.TreeEvent(changes=changes)


def tree_events(message: pb.TreeEvent) -> list[TreeEvent]:
    """What of a message this version knows."""
    found = []
    for change in message.changes:
        kind = change.WhichOneof("change")
        if kind is not None:
            found.append(_READERS[kind](getattr(change, kind)))
    return found


def change_message(event: TreeEvent, asked: pb.TreeCommand | None = None) -> pb.TreeChange:
    """One event's. asked: the command that it refuses, if it does."""
    if isinstance(event, Refused):
        error = error_message(event.error, asked)
        return pb.TreeChange(refused=pb.CommandRefused(command_id=event.command_id, error=error))
    kind, write = _WRITERS[type(event)]
    return pb.TreeChange(**{kind: write(event)})


def _accepted_message(event: Accepted) -> pb.CommandAccepted:
    return pb.CommandAccepted(command_id=event.command_id, nodes=map(node_message, event.nodes))


def _scored_message(event: NodeScored) -> pb.NodeScored:
    continuations = map(scored_message, event.continuations)
    return pb.NodeScored(command_id=event.command_id, node=event.node, continuations=continuations)


def _pruned_message(event: NodesPruned) -> pb.NodesPruned:
    return pb.NodesPruned(command_id=event.command_id, nodes=event.nodes)


def _exported_message(event: Exported) -> pb.NodesExported:
    return pb.NodesExported(command_id=event.command_id, paths=map(path_message, event.paths))


def _opened_message(event: TreeOpened) -> pb.TreeOpened:
    return pb.TreeOpened(
        tree=event.tree,
        model=event.model,
        seed=event.seed,
        nodes=map(node_message, event.nodes),
        secret=event.secret,
        limits=limits_message(event.limits),
        grace=event.grace,
        idle_timeout=event.idle_timeout,
        max_command_bytes=event.max_command_bytes,
        block_size=event.block_size,
        max_positions=event.max_positions,
    )


def _opened_of(message: pb.TreeOpened) -> TreeOpened:
    return TreeOpened(
        message.tree,
        message.model,
        message.seed,
        tuple(map(node_of, message.nodes)),
        TreeLimits(**limits_of(message.limits)),
        message.secret,
        message.grace if message.HasField("grace") else None,
        message.idle_timeout if message.HasField("idle_timeout") else None,
        message.max_command_bytes if message.HasField("max_command_bytes") else None,
        message.block_size if message.HasField("block_size") else None,
        message.max_positions if message.HasField("max_positions") else None,
    )


def _delta_message(event: NodeDelta) -> pb.NodeDelta:
    message = pb.NodeDelta(node=event.node, token_ids=event.token_ids, text=event.text)
    if event.logprobs:
        message.logprobs.extend(map(logprob_message, event.logprobs))
    return message


def _delta_of(message: pb.NodeDelta) -> NodeDelta:
    logprobs = tuple(map(logprob_of, message.logprobs)) or None
    return NodeDelta(message.node, tuple(message.token_ids), message.text, logprobs)


def _stopped_message(event: NodeStopped) -> pb.NodeStopped:
    return pb.NodeStopped(
        node=event.node,
        state=STATES[event.state],
        finish_reason=REASONS[event.finish_reason],
        cumulative_logprob=event.cumulative_logprob,
        error=None if event.error is None else error_message(event.error),
        item=event.item,
    )


def _stopped_of(message: pb.NodeStopped) -> NodeStopped:
    return NodeStopped(
        message.node,
        state_of(message.state),
        node_reason_of(message.finish_reason),
        message.cumulative_logprob,
        told_error(message.error) if message.HasField("error") else None,
        message.item if message.HasField("item") else None,
    )


def _done_message(event: Done) -> pb.CommandDone:
    return pb.CommandDone(
        command_id=event.command_id,
        usages=map(usage_message, event.usages),
        error=None if event.error is None else error_message(event.error),
    )


def _done_of(message: pb.CommandDone) -> Done:
    error = told_error(message.error) if message.HasField("error") else None
    return Done(message.command_id, tuple(map(usage_of, message.usages)), error)


def _scored_of(message: pb.NodeScored) -> NodeScored:
    scored = tuple(scored_of(index, one) for index, one in enumerate(message.continuations))
    return NodeScored(message.command_id, message.node, scored)


_READERS: Mapping[str, Callable[[Any], TreeEvent]] = {
    "opened": _opened_of,
    "accepted": lambda m: Accepted(m.command_id, tuple(map(node_of, m.nodes))),
    "refused": lambda m: Refused(m.command_id, told_error(m.error)),
    "done": _done_of,
    "delta": _delta_of,
    "stopped": _stopped_of,
    "scored": _scored_of,
    "pruned": lambda m: NodesPruned(m.command_id, tuple(m.nodes)),
    "exported": lambda m: Exported(m.command_id, tuple(map(path_of, m.paths))),
}
_WRITERS: Mapping[type[TreeEvent], tuple[str, Callable[[Any], Any]]] = {
    TreeOpened: ("opened", _opened_message),
    Accepted: ("accepted", _accepted_message),
    Done: ("done", _done_message),
    NodeDelta: ("delta", _delta_message),
    NodeStopped: ("stopped", _stopped_message),
    NodeScored: ("scored", _scored_message),
    NodesPruned: ("pruned", _pruned_message),
    Exported: ("exported", _exported_message),
}
