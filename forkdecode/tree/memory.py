"""Which nodes may hold KV in the engine, and which of them give it up first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

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
        """Targets get what the source holds of its first `length` tokens, if there is room for that."""
        self.use(source)
        if source.held is None:
            return
        path = source.held if source.held.length <= length else source.held.up_to(length)
        if self._missing(self._blocks.cost([path]), ()) > 0:
            return
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

    def growth(self, length: int, tokens: int) -> int:
        """Blocks that a row can come to need for `tokens` tokens after `length`."""
        return self._blocks.most(length, tokens)

    def make_room(self, blocks: int, origins: Sequence[TreeNode]) -> None:
        """Lets idle nodes give up their KV until `blocks` more are within the limit, those of all of the
        `origins` included. Raises CapacityError when that cannot be."""
        missing = self._missing(blocks, origins)
        if missing > 0:
            raise CapacityError(
                f"max_blocks: this can need {blocks} KV blocks more, {missing} more than there are left "
                "besides what is pinned or in use; ask for fewer tokens or nodes at a time, unpin or prune",
                field="max_blocks",
                limit=f"at most {self._limits.max_blocks} blocks",
            )

    def _missing(self, blocks: int, origins: Sequence[TreeNode]) -> int:
        """Blocks that are not to be had even when idle nodes have given up their KV, as far as needed."""
        limit = self._limits.max_blocks
        if limit is None:
            return 0
        now, spared, gone = self._clock(), {node.number for node in origins}, []
        for node in list(self._nodes.values()):
            if self._over(limit, blocks, origins) <= 0:
                break
            if node.number not in spared and self._idle(node, now):
                self.forget(node)
                gone.append(node)
        self.release(gone)
        return self._over(limit, blocks, origins)

    def _over(self, limit: int, blocks: int, origins: Sequence[TreeNode]) -> int:
        held = self._blocks.cost(node.path for node in origins if node.held is not node.path)
        return self.blocks + held + blocks - limit

    def reserve(self, blocks: int) -> None:
        """For a running request; negative when it has ended."""
        self._reserved += blocks

    def _idle(self, node: TreeNode, now: float) -> bool:
        return not node.running and node.pinned_until <= now
