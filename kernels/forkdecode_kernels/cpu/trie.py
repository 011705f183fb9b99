"""One step down a trie: a binary search a row, without the interpreter lock."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.jit import entry


@entry
def step_down(
    tokens: NDArray[np.int32],
    offsets: NDArray[np.signedinteger],
    nodes: NDArray[np.int64],
    parents: NDArray[np.int32],
    chosen: NDArray[np.int64],
    found: NDArray[np.int64],
) -> bool:
    """See trie.step_down; False where a parent or a node is out of bounds."""
    for i in range(parents.shape[0]):
        found[i] = -1
        parent = parents[i]
        if parent < 0 or parent >= nodes.shape[0]:
            return False
        node = nodes[parent]
        if node >= tokens.shape[0]:
            return False
        if node < 0:
            continue
        low, high = np.int64(offsets[node]), np.int64(offsets[node + 1])
        end = high
        while low < high:
            middle = (low + high) >> 1
            if tokens[middle] < chosen[i]:
                low = middle + 1
            else:
                high = middle
        if low < end and tokens[low] == chosen[i]:
            found[i] = low
    return True
