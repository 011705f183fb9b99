"""How deep a catalogue goes below each of its nodes, for requests that want long items alone."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Heights: TypeAlias = NDArray[np.uint8] | NDArray[np.int32]


class LazyHeights:
    """The heights of one catalogue, found when they are first asked for: most requests never do. Safe to call
    from several threads, which at worst find them twice."""

    def __init__(self) -> None:
        self._found: Heights | None = None

    def of(self, offsets: NDArray[np.int32] | NDArray[np.int64], depth: int) -> Heights:
        """See heights(); always called with the catalogue's own arrays."""
        if self._found is None:
            self._found = heights(offsets, depth)
        return self._found


def heights(offsets: NDArray[np.int32] | NDArray[np.int64], depth: int) -> Heights:
    """[N] Tokens from each node to the end of the longest item below it, 0 where nothing follows. offsets
    [N + 1] as in Catalogue; depth: of the longest item. One pass over the levels, the deepest first."""
    nodes = len(offsets) - 1
    found: Heights = np.zeros(nodes, np.uint8) if depth < 256 else np.zeros(nodes, np.int32)
    for start, stop in reversed(_levels(offsets)):
        first = offsets[start:stop]
        inner = np.flatnonzero(offsets[start + 1 : stop + 1] > first)
        if len(inner):
            children = found[first[inner[0]] : offsets[stop]]
            found[start + inner] = np.maximum.reduceat(children, first[inner] - first[inner[0]]) + 1
    return found


def _levels(offsets: NDArray[np.int32] | NDArray[np.int64]) -> list[tuple[int, int]]:
    """The nodes of each depth, the root's first."""
    levels, start, stop = [], 0, 1
    while start < stop:
        levels.append((start, stop))
        start, stop = stop, int(offsets[stop])
    return levels
