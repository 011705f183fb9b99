"""One step down a trie for many rows at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu import trie as cpu

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


def step_down(tokens: I32, offsets: NDArray[np.signedinteger], nodes: I64, parents: I32, chosen: I64) -> I64:
    """tokens [N], offsets [N + 1]: a trie in CSR, node i's children being offsets[i] .. offsets[i + 1] with
    ascending tokens; nodes [R]: where each row is, -1 for nowhere; parents, chosen [R'] -> nodes [R'].

    Row i goes from nodes[parents[i]] to its child by token chosen[i]: -1 where there is none.
    """
    if parents.shape != chosen.shape or parents.ndim != 1:
        raise ValueError(f"parents {parents.shape} and chosen {chosen.shape} must be of one length")
    if len(offsets) != len(tokens) + 1:
        raise ValueError(f"{len(tokens)} nodes need {len(tokens) + 1} offsets, not {len(offsets)}")
    found = np.empty(len(parents), np.int64)
    if not cpu.step_down(tokens, offsets, nodes, parents, chosen, found):
        raise ValueError(f"parents must be in 0 .. {len(nodes) - 1}, and nodes below {len(tokens)}")
    return found


def warm_up() -> None:
    """Compiles what step_down needs, or loads it: tens of milliseconds, or seconds the first time."""
    tokens, offsets = np.array([-1, 3], np.int32), np.array([1, 2, 2], np.int32)
    tokens.flags.writeable = offsets.flags.writeable = False  # as a catalogue's are
    step_down(tokens, offsets, np.zeros(1, np.int64), np.zeros(1, np.int32), np.zeros(1, np.int64))
