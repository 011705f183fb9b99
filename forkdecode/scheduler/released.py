"""What was released while groups run that would hold it again."""

from __future__ import annotations

from collections import Counter

from forkdecode.scheduler.request import DecodeRequest, NodeRef, Release


class ReleasedNodes:
    """Remembers which groups came before each release of nodes of their trees, by group number; of a
    tree without groups nothing."""

    def __init__(self) -> None:
        self._groups: Counter[str] = Counter()
        self._nodes: dict[str, dict[int | None, int]] = {}
        """By tree and node, None for all of a tree: the last group before the release."""
        self._counts: Counter[str] = Counter()
        self._last = 0

    def __len__(self) -> int:
        return len(self._groups) + len(self._nodes)

    def for_group(self, number: int, ref: NodeRef) -> bool:
        """Whether a node was released since that group came."""
        nodes = self._nodes.get(ref.tree, {})
        return number <= max(nodes.get(ref.node, 0), nodes.get(None, 0))

    def count(self, tree: str) -> int:
        """How many releases of the tree's nodes there have been while groups of it live."""
        return self._counts[tree]

    def enter(self, number: int, request: DecodeRequest) -> None:
        """A group begins to live. number: above those before it."""
        self._last = number
        self._groups.update(_trees_of(request))

    def leave(self, request: DecodeRequest) -> None:
        """It has ended."""
        for tree in _trees_of(request):
            self._groups[tree] -= 1
            if not self._groups[tree]:
                del self._groups[tree]
                self._nodes.pop(tree, None)
                del self._counts[tree]

    def add(self, op: Release) -> None:
        """Groups that live now must not hold these again."""
        if op.tree in self._groups:
            nodes = (None,) if op.nodes is None else op.nodes
            self._nodes.setdefault(op.tree, {}).update(dict.fromkeys(nodes, self._last))
            self._counts[op.tree] += 1


def _trees_of(request: DecodeRequest) -> set[str]:
    return {ref.tree for ref in (request.origin, request.keep) if ref is not None}
