"""Nodes of trees to and from the protocol: as they are, and as records to be kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast, get_args

from forkdecode.errors import ForkdecodeError
from forkdecode.rpc.convert_constraints import constraint_message, constraint_of
from forkdecode.rpc.fields import named
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.tree_types import NodeInfo, NodePath, NodeReason, NodeState
from forkdecode.tree_types.events import NODE_REASONS

STATES: Mapping[NodeState, pb.NodeState] = {
    name: cast(pb.NodeState, pb.NodeState.Value(f"NODE_STATE_{name.upper()}")) for name in get_args(NodeState)
}
REASONS: Mapping[str | None, pb.NodeReason] = {
    None: pb.NODE_REASON_UNSPECIFIED,
    **{
        name: cast(pb.NodeReason, pb.NodeReason.Value(f"NODE_REASON_{name.upper()}")) for name in NODE_REASONS
    },
}
_STATES = {int(number): state for state, number in STATES.items()}
_REASONS = {int(number): reason for reason, number in REASONS.items()}


def state_of(number: int) -> NodeState:
    """Raises ForkdecodeError for one that this version does not know."""
    if number not in _STATES:
        raise ForkdecodeError(f"node state {number} is unknown: the server is newer than this client")
    return _STATES[number]


def node_reason_of(number: int) -> NodeReason | None:
    """Raises ForkdecodeError for one that this version does not know."""
    if number not in _REASONS:
        raise ForkdecodeError(f"node reason {number} is unknown: the server is newer than this client")
    return cast(NodeReason | None, _REASONS[number])


def node_message(info: NodeInfo) -> pb.Node:
    return pb.Node(
        node=info.node,
        parent=info.parent,
        depth=info.depth,
        state=STATES[info.state],
        start=info.start,
        token_ids=info.token_ids,
        text=info.text,
        lineage=info.lineage,
        next_seed=info.next_seed,
        finish_reason=REASONS[info.finish_reason],
        cumulative_logprob=info.cumulative_logprob,
        before_ids=info.before_ids,
        before_text=info.before_text,
        item=info.item,
    )


def node_of(message: pb.Node) -> NodeInfo:
    return NodeInfo(
        node=message.node,
        parent=message.parent if message.HasField("parent") else None,
        depth=message.depth,
        state=state_of(message.state),
        start=message.start,
        token_ids=tuple(message.token_ids),
        text=message.text,
        lineage=message.lineage,
        next_seed=message.next_seed,
        finish_reason=node_reason_of(message.finish_reason),
        cumulative_logprob=message.cumulative_logprob,
        before_ids=tuple(message.before_ids),
        before_text=message.before_text,
        item=message.item if message.HasField("item") else None,
    )


def path_message(path: NodePath) -> pb.NodePath:
    return pb.NodePath(
        model=path.model,
        node=path.node,
        parent=path.parent,
        token_ids=path.token_ids,
        start=path.start,
        text=path.text,
        lineage=path.lineage,
        next_seed=path.next_seed,
        finished=path.finished,
        finish_reason=REASONS[path.finish_reason],
        cumulative_logprob=path.cumulative_logprob,
        logprobs=path.logprobs,
        constraint=None if path.constraint is None else constraint_message(path.constraint),
        constraint_start=path.constraint_start,
        constraint_end=path.constraint_end,
        item=path.item,
    )


def path_of(message: pb.NodePath) -> NodePath:
    """Raises InvalidRequestError."""
    return NodePath(
        model=message.model,
        node=message.node,
        parent=message.parent if message.HasField("parent") else None,
        token_ids=tuple(message.token_ids),
        start=message.start,
        text=message.text,
        lineage=message.lineage,
        next_seed=message.next_seed,
        finished=message.finished,
        finish_reason=named("finish_reason", pb.NodeReason, REASONS, message.finish_reason),
        cumulative_logprob=message.cumulative_logprob,
        logprobs=tuple(message.logprobs),
        constraint=constraint_of(message.constraint) if message.HasField("constraint") else None,
        constraint_start=message.constraint_start,
        constraint_end=message.constraint_end,
        item=message.item if message.HasField("item") else None,
    )
