"""One step down a trie, row by row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def step_down(
    tokens: NDArray[np.int32],
    offsets: NDArray[np.signedinteger],
    nodes: NDArray[np.int64],
    parents: NDArray[np.int32],
    chosen: NDArray[np.int64],
) -> NDArray[np.int64]:
    """See trie.step_down."""
    found = np.full(len(parents), -1, np.int64)
    for i, (parent, token) in enumerate(zip(parents, chosen, strict=True)):
        node = nodes[parent]
        if node < 0:
            continue
        children = range(int(offsets[node]), int(offsets[node + 1]))
        found[i] = next((child for child in children if tokens[child] == token), -1)
    return found
