"""What a tree session answers, and what it reports about its nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from forkdecode.errors import ForkdecodeError
from forkdecode.results import ScoredContinuation, TokenLogprob, Usage
from forkdecode.tree_types.limits import TreeLimits
from forkdecode.tree_types.paths import NodePath

NodeState: TypeAlias = Literal["generating", "stopped", "finished"]
"""generating: its path still grows. stopped: at rest, can be decoded on. finished: at rest, nothing more is
decoded from it (it ended by an EOS token, or was said to be finished); what extends it can be decoded."""
NodeReason: TypeAlias = Literal["eos", "stop", "step", "length", "cancelled", "pruned", "failed"]
"""Why a node stopped: as a candidate does, or at a step delimiter, or because its group failed."""
NODE_REASONS: tuple[NodeReason, ...] = get_args(NodeReason)


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The current state of a node.

    parent: None for a root; the parent may have been pruned. depth: number of edges from a root. start:
    number of tokens of the path before its own. token_ids, text, cumulative_logprob: of its own tokens; given
    tokens have no log-probability. A character belongs to the node that completes it. lineage: the value its
    random draws are derived from. next_seed: the lowest seed not yet used by a draw from it or a fork of it.
    finish_reason: why generation stopped, if the node was generated. before_ids, before_text: what comes
    before its own tokens, for a node whose parent is not in the tree. item: the key of the catalogue item
    that its path has completed, if it was decoded under a catalogue.
    """

    node: int
    parent: int | None
    depth: int
    state: NodeState
    start: int
    token_ids: tuple[int, ...]
    text: str
    lineage: int
    next_seed: int = 0
    finish_reason: NodeReason | None = None
    cumulative_logprob: float = 0.0
    before_ids: tuple[int, ...] = ()
    before_text: str = ""
    item: str | None = None


@dataclass(frozen=True, slots=True)
class TreeOpened:
    """A session's first event, sent again when it is resumed: its name, its model, its seed, its live nodes.

    limits: what it may hold. For a session on a server: secret resumes it, together with its name, within
    `grace` seconds after its connection was lost; idle_timeout: seconds after which it is ended if it is
    unused; max_command_bytes: the largest command, as it is sent. block_size: number of tokens per KV block.
    max_positions: the most tokens that a path can have with the model.
    """

    tree: str
    model: str
    seed: int
    nodes: tuple[NodeInfo, ...]
    limits: TreeLimits = field(default_factory=TreeLimits)
    secret: str = field(default="", repr=False)
    grace: float | None = None
    idle_timeout: float | None = None
    max_command_bytes: int | None = None
    block_size: int | None = None
    max_positions: int | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """A command is carried out; nodes: those it makes."""

    command_id: int
    nodes: tuple[NodeInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """A command that has changed nothing; error.field names what is wrong."""

    command_id: int
    error: ForkdecodeError


@dataclass(frozen=True, slots=True)
class Done:
    """An accepted command has ended: the last event of it. usages: what each of its groups took, those
    left out that were lost with their engine. error: why one of them failed."""

    command_id: int
    usages: tuple[Usage, ...] = ()
    error: ForkdecodeError | None = None


@dataclass(frozen=True, slots=True)
class NodeDelta:
    """New tokens of a node and the text that has become certain with them; logprobs if asked for."""

    node: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class NodeStopped:
    """A node has stopped growing, or a node at rest was marked as finished. error: why its group failed.
    item: as in NodeInfo."""

    node: int
    state: NodeState
    finish_reason: NodeReason | None
    cumulative_logprob: float
    error: ForkdecodeError | None = None
    item: str | None = None


@dataclass(frozen=True, slots=True)
class NodeScored:
    """One node's answer to ScoreNodes."""

    command_id: int
    node: int
    continuations: tuple[ScoredContinuation, ...]


@dataclass(frozen=True, slots=True)
class NodesPruned:
    """These nodes are gone. The answer to Prune."""

    command_id: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Exported:
    """The answer to Export, in the order of its nodes."""

    command_id: int
    paths: tuple[NodePath, ...]


TreeEvent: TypeAlias = (
    TreeOpened | Accepted | Refused | Done | NodeDelta | NodeStopped | NodeScored | NodesPruned | Exported
)
