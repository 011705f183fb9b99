"""Which nodes may hold KV in the engine, and which of them give it up first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from forkdecode.engine.port import EnginePort
from forkdecode.errors import CapacityError
from forkdecode.scheduler.request import NodeRef, Release, Share
from forkdecode.tree.node import TreeNode
from forkdecode.tree.path import BlockCount, Path
from forkdecode.tree_types import TreeLimits


class HeldNodes:
    """Nodes that hold KV, as far as the session asked for it, in the order in which they were last used.
    What the engine drops by itself, under pressure, is still counted here."""

    def __init__(
        self, tree: str, port: EnginePort, limits: TreeLimits, block_size: int, clock: Callable[[], float]
    ) -> None:
        self._tree = tree
        self._port = port
        self._limits = limits
        self._clock = clock
        self._nodes: OrderedDict[int, TreeNode] = OrderedDict()
        self._blocks = BlockCount(block_size)
        self._reserved = 0

    @property
    def blocks(self) -> int:
        """Unique blocks that held paths and running requests may refer to."""
        return self._blocks.total + self._reserved

    @property
    def count(self) -> int:
        """Nodes that may hold KV."""
        return len(self._nodes)

    def ref(self, node: TreeNode) -> NodeRef:
        """The engine's name of a node."""
        return NodeRef(self._tree, node.number)

    def use(self, node: TreeNode) -> None:
        """The node is used now: it gives up its KV after those that were used before."""
        node.used = self._clock()
        if node.number in self._nodes:
            self._nodes.move_to_end(node.number)

    def hold(self, node: TreeNode, path: Path) -> None:
        """The engine holds KV of `path`, the beginning of the node's, from now on or soon."""
        if node.held is not path:
            self._blocks.hold(path)
            if node.held is not None:
                self._blocks.release(node.held)
            node.held = path
        self._nodes[node.number] = node
        self.use(node)

    def share(self, source: TreeNode, targets: list[TreeNode], length: int) -> None:
        """Targets get what the source holds of its first `length` tokens."""
        self.use(source)
        if source.held is None:
            return
        path = source.held if source.held.length <= length else source.held.up_to(length)
        for target in targets:
            self.hold(target, path)
        self._port.tree(Share(self.ref(source), tuple(map(self.ref, targets)), length))

    def release(self, nodes: Iterable[TreeNode]) -> None:
        """They hold nothing any more, nor will they by what runs now."""
        numbers = []
        for node in nodes:
            self.forget(node)
            numbers.append(node.number)
        if numbers:
            self._port.tree(Release(self._tree, tuple(numbers)))

    def forget(self, node: TreeNode) -> None:
        """The engine holds nothing of it."""
        if node.held is not None:
            self._blocks.release(node.held)
            node.held = None
        self._nodes.pop(node.number, None)

    def expire(self) -> None:
        """Nodes that were not used for the idle TTL give up their KV."""
        if self._limits.idle_ttl is None:
            return
        now = self._clock()
        late = []
        for node in self._nodes.values():
            if node.used + self._limits.idle_ttl > now:
                break
            if self._idle(node, now):
                late.append(node)
        self.release(late)

    def growth(self, length: int, rows: int, tokens: int) -> int:
        """Blocks that `rows` rows of up to `tokens` tokens after `length` can come to need."""
        return rows * self._blocks.most(length, tokens)

    def make_room(self, blocks: int, keep: Iterable[TreeNode]) -> None:
        """Lets idle nodes give up their KV, but for `keep`, until `blocks` more are within the limit.
        Raises CapacityError when that cannot be."""
        limit = self._limits.max_blocks
        if limit is None or self.blocks + blocks <= limit:
            return
        now, spared = self._clock(), {node.number for node in keep}
        idle = [n for n in self._nodes.values() if n.number not in spared and self._idle(n, now)]
        gone = []
        for node in idle:
            if self.blocks + blocks <= limit:
                break
            self.forget(node)
            gone.append(node)
        self.release(gone)
        if self.blocks + blocks > limit:
            raise CapacityError(
                f"max_blocks: this can need {blocks} KV blocks besides the {self.blocks} that are pinned "
                f"or in use; the session may have {limit}; ask for fewer tokens or nodes "
                "at a time, unpin or prune",
                field="max_blocks",
                limit=f"at most {limit} blocks",
            )

    def reserve(self, blocks: int) -> None:
        """For a running request; negative when it has ended."""
        self._reserved += blocks

    def _idle(self, node: TreeNode, now: float) -> bool:
        return not node.running and node.pinned_until <= now
