"""What a session knows of a node."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from forkdecode.errors import invalid
from forkdecode.tree.path import Path
from forkdecode.tree.text import TextState
from forkdecode.tree_types import MAX_COUNTED_SEED, NodeReason, NodeState


class TreeNode:
    """path: all its tokens once it has stopped; while it is generated its parent's, and `growing` what has
    come since. start: tokens before its own. base: tokens of the path that truncation leaves. held: the
    beginning of its path of which the engine may hold KV. item: of a catalogue, that its tokens complete.
    running: requests that start from it. counted: tokens that the session's limit counts for it.
    """

    __slots__ = (
        "base",
        "children",
        "counted",
        "cumulative_logprob",
        "depth",
        "finish_reason",
        "growing",
        "held",
        "item",
        "lineage",
        "next_seed",
        "number",
        "parent",
        "path",
        "pinned_until",
        "running",
        "start",
        "state",
        "text",
        "text_state",
        "used",
    )

    def __init__(
        self,
        number: int,
        parent: TreeNode | None,
        path: Path,
        lineage: int,
        *,
        text: str = "",
        text_state: TextState,
        state: NodeState = "stopped",
        start: int | None = None,
        base: int | None = None,
    ) -> None:
        self.number = number
        self.parent = None if parent is None else parent.number
        self.children: set[int] = set()
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.path = path
        self.start = start if start is not None else 0 if parent is None else parent.path.length
        self.base: int = base if base is not None else path.length if parent is None else parent.base
        self.lineage = lineage
        self.next_seed = 0
        self.text = [text]
        self.text_state = text_state
        self.state: NodeState = state
        self.finish_reason: NodeReason | None = None
        self.item: str | None = None
        self.cumulative_logprob = 0.0
        self.growing: list[int] = []
        self.counted = path.length - self.start
        self.held: Path | None = None
        self.running = 0
        self.pinned_until = -math.inf
        self.used = -math.inf

    @property
    def own_tokens(self) -> int:
        """How many tokens it has after `start`, so far."""
        return self.path.length - self.start + len(self.growing)

    def own_ids(self) -> tuple[int, ...]:
        """Those tokens."""
        return (*self.path.token_ids(self.start).tolist(), *self.growing)

    def had_seed(self, seed: int) -> None:
        """A draw or a fork by `seed` has been asked for."""
        if seed < MAX_COUNTED_SEED:
            self.next_seed = max(self.next_seed, seed + 1)

    def whole_text(self) -> str:
        """Its own text so far."""
        self.text[:] = ["".join(self.text)]
        return self.text[0]


class NodeTable:
    """The live nodes of a session by their numbers, which are given in order and never again."""

    def __init__(self) -> None:
        self._nodes: dict[int, TreeNode] = {}
        self.next_number = 0
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[TreeNode]:
        return iter(self._nodes.values())

    def __contains__(self, number: int | None) -> bool:
        return number in self._nodes

    def add(self, node: TreeNode) -> TreeNode:
        """The next node; its number is `next_number`."""
        assert node.number == self.next_number, "numbers are given in order"
        self.next_number += 1
        self._nodes[node.number] = node
        self.tokens += node.counted
        parent = self.parent(node)
        if parent is not None:
            parent.children.add(node.number)
        return node

    def settle(self, node: TreeNode) -> None:
        """The node has all the tokens that it will have."""
        self.tokens += node.own_tokens - node.counted
        node.counted = node.own_tokens

    def parent(self, node: TreeNode) -> TreeNode | None:
        """None where it is a root, or its parent has been pruned."""
        return None if node.parent is None else self._nodes.get(node.parent)

    def find(self, number: int) -> TreeNode | None:
        """The live node of that number, if there is one."""
        return self._nodes.get(number)

    def get(self, field: str, number: int, *, at_rest: bool = False) -> TreeNode:
        """Raises InvalidRequestError unless it is live and, with at_rest, not being generated."""
        node = self._nodes.get(number)
        if node is None:
            problem = "has been pruned" if number < self.next_number else "is not in this tree"
            raise invalid(field, f"{number} {problem}", "live nodes")
        if at_rest and node.state == "generating":
            raise invalid(field, f"{number} is still being generated", "nodes that have stopped")
        return node

    def all(self, numbers: Iterable[int], *, at_rest: bool = False) -> list[TreeNode]:
        """The same of a command's `nodes`."""
        return [self.get("nodes", number, at_rest=at_rest) for number in numbers]

    def with_descendants(self, nodes: Iterable[TreeNode]) -> list[TreeNode]:
        """`nodes` and all below them, by number."""
        found: dict[int, TreeNode] = {}
        left = list(nodes)
        while left:
            node = left.pop()
            if node.number not in found:
                found[node.number] = node
                left += [self._nodes[number] for number in node.children]
        return [found[number] for number in sorted(found)]

    def remove(self, node: TreeNode) -> None:
        """Its children stay, without it."""
        del self._nodes[node.number]
        self.tokens -= node.counted
        parent = self.parent(node)
        if parent is not None:
            parent.children.discard(node.number)
