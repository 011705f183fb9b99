"""Tree sessions in data: the commands that steer a tree of sequences, and what it answers.

A node is an immutable path of tokens: a prompt and what came after it. Nodes are numbered by the session,
from 0, in the order in which commands make them. Commands are carried out in the order in which they are
sent; each is either accepted, and later done, or refused, which changes nothing.
"""

from forkdecode.tree_types.commands import (
    Command,
    Decode,
    Export,
    Extend,
    Finish,
    Fork,
    Import,
    Pin,
    Prune,
    ScoreNodes,
    Stop,
    Truncate,
    Unpin,
)
from forkdecode.tree_types.events import (
    Accepted,
    Done,
    Exported,
    NodeDelta,
    NodeInfo,
    NodeReason,
    NodeScored,
    NodesPruned,
    NodeState,
    NodeStopped,
    Refused,
    TreeEvent,
    TreeOpened,
)
from forkdecode.tree_types.limits import MAX_ASKED_TOKENS, MAX_EXPORTED_TOKENS, TreeLimits
from forkdecode.tree_types.opening import OpenTree
from forkdecode.tree_types.paths import MAX_COUNTED_SEED, NodePath

__all__ = [
    "MAX_ASKED_TOKENS",
    "MAX_COUNTED_SEED",
    "MAX_EXPORTED_TOKENS",
    "Accepted",
    "Command",
    "Decode",
    "Done",
    "Export",
    "Exported",
    "Extend",
    "Finish",
    "Fork",
    "Import",
    "NodeDelta",
    "NodeInfo",
    "NodePath",
    "NodeReason",
    "NodeScored",
    "NodeState",
    "NodeStopped",
    "NodesPruned",
    "OpenTree",
    "Pin",
    "Prune",
    "Refused",
    "ScoreNodes",
    "Stop",
    "TreeEvent",
    "TreeLimits",
    "TreeOpened",
    "Truncate",
    "Unpin",
]
