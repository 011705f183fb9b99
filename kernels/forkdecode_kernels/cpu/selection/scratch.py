"""The memory that drawing from one row needs, reused by the next."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.rows import CHUNK, TILE


class Scratch(NamedTuple):
    """tiles [tiles]; sums [chunks]; the rest [V + 1]: a list entry is written before it is known to stay.

    tiles: ordered maxima; exps, sums: exponentials and their chunk sums; ids, weights: the list of
    survivors; keys and the spares: for `threshold.crossing`; distances: for `typical`; cumulative: of the
    survivors' weights.
    """

    tiles: NDArray[np.int32]
    sums: NDArray[np.float64]
    exps: NDArray[np.float32]
    ids: NDArray[np.int32]
    weights: NDArray[np.float32]
    keys: NDArray[np.uint32]
    spare_keys: NDArray[np.uint32]
    spare_weights: NDArray[np.float32]
    distances: NDArray[np.float32]
    cumulative: NDArray[np.float64]


def make_scratch(vocab: int) -> Scratch:
    """Scratch for rows of `vocab` logits."""
    size = vocab + 1
    return Scratch(
        np.empty(-(-vocab // TILE), np.int32),
        np.empty(-(-vocab // CHUNK), np.float64),
        np.empty(size, np.float32),
        np.empty(size, np.int32),
        np.empty(size, np.float32),
        np.empty(size, np.uint32),
        np.empty(size, np.uint32),
        np.empty(size, np.float32),
        np.empty(size, np.float32),
        np.empty(size, np.float64),
    )
