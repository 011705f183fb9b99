"""The obvious trie, of dicts, to compare catalogues with; and random items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

Items = Sequence[tuple[int, ...]]

HUGE = 2**31 - 1
TOKENS = st.one_of(st.integers(0, 3), st.integers(0, 300), st.sampled_from([HUGE - 1, HUGE]))
ITEMS = st.lists(st.lists(TOKENS, min_size=1, max_size=5).map(tuple), min_size=1, max_size=30)
"""Any items: duplicates, beginnings of others, unsorted."""


@dataclass
class Trie:
    """A node: what continues it, and the number of the first item that ends here."""

    children: dict[int, Trie] = field(default_factory=dict)
    item: int | None = None

    @staticmethod
    def of(items: Items) -> Trie:
        root = Trie()
        for number, item in enumerate(items):
            node = root
            for token in item:
                node = node.children.setdefault(token, Trie())
            if node.item is None:
                node.item = number
        return root

    def paths(self, before: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Trie]]:
        """All nodes with what leads to them, the root first."""
        yield before, self
        for token, child in self.children.items():
            yield from child.paths((*before, token))


def first_of(items: Items) -> dict[tuple[int, ...], int]:
    """The number of each item's first appearance."""
    found: dict[tuple[int, ...], int] = {}
    for number, item in enumerate(items):
        found.setdefault(item, number)
    return found
