"""What a command makes do, which its bytes don't tell: who serves many sessions keeps long ones apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forkdecode.tree.node import NodeTable, TreeNode
from forkdecode.tree_types import Command, Decode, Export, Extend, Fork, Prune, ScoreNodes, Truncate

_MADE = 512
"""Of a node that is made or written down, or a request: some 100 us. A token of a path takes some 0.1 us, and
is counted as one."""
_TOUCHED = 64


@dataclass(frozen=True, slots=True)
class Effort:
    """size: in bytes of a request that would take about as long to read. waits: whether it may have to wait,
    for a constraint to be compiled, which may take seconds."""

    size: int
    waits: bool = False


def effort(command: Command, size: int, nodes: NodeTable, enough: int) -> Effort:
    """Of a command of `size` bytes; once it comes to `enough`, no more is counted."""
    total = size
    for part in _parts(command, nodes):
        total += part
        if total >= enough:
            break
    return Effort(total, _waits(command, nodes))


def snapshot_effort(nodes: NodeTable) -> Effort:
    """Of telling all that there is."""
    return Effort(_TOUCHED * len(nodes) + nodes.tokens)


def _parts(command: Command, nodes: NodeTable) -> Iterator[int]:
    if isinstance(command, Decode):
        for node in _found(command.nodes, nodes):
            yield _MADE * command.n + node.path.length
    elif isinstance(command, (ScoreNodes, Export)):
        for node in _found(command.nodes, nodes):
            yield _MADE + node.path.length
    elif isinstance(command, Fork):
        yield _MADE * command.n
    elif isinstance(command, (Extend, Truncate)):
        for node in _found((command.node,), nodes):
            yield _MADE + node.path.length
    elif isinstance(command, Prune) and command.subtree:
        for _ in _below(_found(command.nodes, nodes), nodes):
            yield _TOUCHED
    elif hasattr(command, "nodes"):
        yield _TOUCHED * len(command.nodes)


def _waits(command: Command, nodes: NodeTable) -> bool:
    if isinstance(command, Decode):
        return command.options.constraint is not None
    if isinstance(command, Extend):  # whether the constraint goes on behind it
        return any(node.path.begun is not None for node in _found((command.node,), nodes))
    return False


def _found(numbers: tuple[int, ...], nodes: NodeTable) -> Iterator[TreeNode]:
    """Those that there are: the command is refused for the others."""
    for number in numbers:
        node = nodes.find(number)
        if node is not None:
            yield node


def _below(tops: Iterator[TreeNode], nodes: NodeTable) -> Iterator[TreeNode]:
    """`tops` and their descendants, some of them maybe several times."""
    left: list[TreeNode] = []
    for top in tops:
        left.append(top)
        while left:
            node = left.pop()
            yield node
            left += _found(tuple(node.children), nodes)
