"""A catalogue: a set of token sequences that may be generated, as a trie in a few arrays.

Shapes: N nodes, I items. Nodes are numbered breadth first, and the children of each by ascending token, so
that the children of node i are the nodes offsets[i] .. offsets[i + 1], and the edge that leads to a node has
the node's own number: `tokens` and `offsets` are the whole trie (a CSR matrix whose column of an entry and
whose target are in one order). The arrays may lie in a file that is mapped; nothing here reads all of them
but check().
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from forkdecode.constraints.catalogue_heights import Heights, LazyHeights
from forkdecode.errors import invalid

RANK_BLOCK = 512
"""Nodes of which one number says how many items are complete before them."""
ROOT_TOKEN = -1
"""Stands in `tokens` for the root, which no edge leads to."""
Offsets: TypeAlias = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CatalogueInfo:
    """What is known of a catalogue without reading it.

    depth, shortest: tokens of its longest and its shortest item. highest: the largest token id in it.
    prefixes: how many items are the beginning of another one. duplicates: how many items were given that
    were there already. model: whose tokens these are, where that was said. digest: of all arrays, in hex.
    """

    items: int
    nodes: int
    depth: int
    shortest: int
    highest: int
    prefixes: int
    duplicates: int
    model: str | None
    digest: str


@dataclass(frozen=True, slots=True)
class Keys:
    """The name of each item. numbers [I] int64: their decimal text is the name; None where names are texts,
    item i's being the UTF-8 text[bounds[i] : bounds[i + 1]]. Arrays are empty where they say nothing."""

    numbers: NDArray[np.int64] | None
    bounds: NDArray[np.int64]
    text: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.bounds) - 1 if self.numbers is None else len(self.numbers)

    def __getitem__(self, item: int) -> str:
        if self.numbers is not None:
            return str(int(self.numbers[item]))
        return self.text[self.bounds[item] : self.bounds[item + 1]].tobytes().decode("utf-8", "replace")

    def follow_each_other(self) -> bool:
        """Whether each name begins where the one before ends."""
        bounds = self.bounds
        if self.numbers is not None:
            return True
        return bounds[0] == 0 and bounds[-1] == len(self.text) and not bool((bounds[1:] < bounds[:-1]).any())


@dataclass(frozen=True, slots=True, eq=False)
class Catalogue:
    """tokens [N] int32: what leads to each node. offsets [N + 1]: where its children begin. complete [N]: an
    item ends at the node. ranks [ceil(N / RANK_BLOCK)]: how many nodes before RANK_BLOCK * i are complete.
    Items are numbered in the order of their nodes; keys are theirs. Arrays are read-only.

    Made by build_catalogue or opened by open_catalogue.
    """

    tokens: NDArray[np.int32]
    offsets: Offsets
    complete: NDArray[np.bool_]
    ranks: NDArray[np.int64]
    keys: Keys
    info: CatalogueInfo
    _heights: LazyHeights = field(default_factory=LazyHeights, init=False)

    def __len__(self) -> int:
        return self.info.items

    def __repr__(self) -> str:
        return f"<Catalogue of {self.info.items} items, depth {self.info.depth}, {self.info.digest[:12]}>"

    def heights(self) -> Heights:
        """[N] Tokens from each node to the end of the longest item below it. The first call reads all offsets
        and takes a byte a node (four where items have 256 tokens and more)."""
        return self._heights.of(self.offsets, self.info.depth)

    def node(self, tokens: Sequence[int]) -> int | None:
        """The node that a path from the root leads to, or None."""
        at = 0
        for token in tokens:
            start, stop = int(self.offsets[at]), int(self.offsets[at + 1])
            # For a few reads, numpy's own search would take several times as long to call.
            at = bisect_left(self.tokens, token, start, stop)
            if at == stop or self.tokens[at] != token:
                return None
        return at

    def item(self, tokens: Sequence[int]) -> int | None:
        """The number of the item that consists of `tokens`, or None."""
        node = self.node(tokens)
        return None if node is None or not self.complete[node] else self._item_at(node)

    def key(self, tokens: Sequence[int]) -> str | None:
        """The key of the item that consists of `tokens`, or None."""
        item = self.item(tokens)
        return None if item is None else self.keys[item]

    def nested_keys(self) -> tuple[str, str]:
        """Keys of an item that is the beginning of another one, and of that other one. Reads all offsets.
        Raises ValueError where there are none."""
        inner = np.flatnonzero(self.complete & (self.offsets[1:] > self.offsets[:-1]))
        if not len(inner):
            raise ValueError("no item is the beginning of another")
        longer = int(self.offsets[inner[0]])
        while not self.complete[longer]:
            longer = int(self.offsets[longer])
        return self.keys[self._item_at(int(inner[0]))], self.keys[self._item_at(longer)]

    def _item_at(self, node: int) -> int:
        """Of a node where an item ends."""
        block = node // RANK_BLOCK
        return int(self.ranks[block]) + int(np.count_nonzero(self.complete[block * RANK_BLOCK : node]))

    def holds_any(self, token_ids: Sequence[int]) -> list[int]:
        """Those of `token_ids` that stand in an item. Reads the whole of `tokens`."""
        return [token for token in token_ids if bool((self.tokens[1:] == token).any())]

    def check(self) -> None:
        """Raises InvalidRequestError unless the arrays are a trie as described, so that nothing that walks it
        can leave it, and those that were built. Reads all of them; takes some ten bytes a node meanwhile."""
        problem = _problem(self)
        if problem is not None:
            raise invalid("catalogue", problem, "what `forkdecode catalogue build` writes")


def rank_blocks(complete: NDArray[np.bool_]) -> NDArray[np.int64]:
    """`ranks` of a catalogue: how many nodes are complete before each block of them."""
    starts = np.arange(0, len(complete), RANK_BLOCK)
    counts = np.add.reduceat(complete, starts, dtype=np.int64)
    return np.concatenate([[0], np.cumsum(counts[:-1])]).astype(np.int64)


def digest_of(catalogue: Catalogue) -> str:
    """Of all arrays: equal for equal catalogues, wherever they lie."""
    digest = hashlib.blake2b(digest_size=16)
    keys = catalogue.keys
    numbers = np.empty(0, np.int64) if keys.numbers is None else keys.numbers
    for array in (catalogue.tokens, catalogue.offsets, catalogue.complete, numbers, keys.bounds, keys.text):
        digest.update(f"{array.dtype.str}{len(array)}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _problem(catalogue: Catalogue) -> str | None:
    """What is wrong with a catalogue, in words."""
    problem = _shape_problem(catalogue) or _edges_problem(catalogue) or _items_problem(catalogue)
    return problem or _digest_problem(catalogue)


def _shape_problem(catalogue: Catalogue) -> str | None:
    """Whether offsets make a tree of the nodes."""
    offsets, nodes = catalogue.offsets, len(catalogue.tokens)
    lengths = (len(offsets), len(catalogue.complete), catalogue.info.nodes)
    if nodes < 2 or lengths != (nodes + 1, nodes, nodes):
        return "its arrays are of no lengths that fit"
    if offsets[0] != 1 or offsets[-1] != nodes or bool((offsets[1:] < offsets[:-1]).any()):
        return "its offsets don't ascend from 1 to the number of nodes"
    # Children come after their parent: with the above, each node but the root is the child of one before it.
    if bool((offsets[:-1] <= np.arange(nodes)).any()):
        return "a node is its own descendant"
    return None


def _edges_problem(catalogue: Catalogue) -> str | None:
    """Whether the tokens of each node's children ascend, within bounds."""
    tokens, offsets, highest = catalogue.tokens, catalogue.offsets, catalogue.info.highest
    if int(tokens[1:].min()) < 0 or int(tokens[1:].max()) != highest:
        return f"its token ids are not from 0 to {highest}"
    first = np.zeros(len(tokens) + 1, np.bool_)
    first[offsets[:-1]] = True
    if not bool((first[2:-1] | (tokens[2:] > tokens[1:-1])).all()):
        return "the tokens after a node don't ascend"
    return None


def _items_problem(catalogue: Catalogue) -> str | None:
    """Whether each path ends with an item, and all of them are counted and named."""
    info, complete = catalogue.info, catalogue.complete
    leaves = catalogue.offsets[1:] == catalogue.offsets[:-1]
    if int(complete.view(np.uint8).max()) > 1 or complete[0] or not bool(complete[leaves].all()):
        return "its marks of items are not where paths end"
    items = int(np.count_nonzero(complete))
    said = (info.items, info.prefixes, len(catalogue.keys))
    if said != (items, items - int(np.count_nonzero(leaves)), items):
        return "it doesn't have as many items as it says"
    if not np.array_equal(catalogue.ranks, rank_blocks(complete)):
        return "its ranks are not those of its items"
    if not catalogue.keys.follow_each_other():
        return "its keys don't follow each other"
    if _depths(catalogue) != (info.shortest, info.depth):
        return f"its items don't have {info.shortest} to {info.depth} tokens"
    return None


def _digest_problem(catalogue: Catalogue) -> str | None:
    changed = digest_of(catalogue) != catalogue.info.digest
    return "its arrays have changed since it was written" if changed else None


def _depths(catalogue: Catalogue) -> tuple[int, int]:
    """Tokens of the shortest and the longest item, level by level."""
    shortest, depth, start, stop = 0, 0, 1, int(catalogue.offsets[1])
    while start < stop:
        depth += 1
        if not shortest and bool(catalogue.complete[start:stop].any()):
            shortest = depth
        start, stop = stop, int(catalogue.offsets[stop])
    return shortest, depth
