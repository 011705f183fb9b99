"""Counter-based randomness: a draw depends on its lineage and position, and on nothing else.

A lineage is a 64-bit name of a row's history of forks: root = hash(seed), candidate i =
hash(parent, i). A draw is Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as
1, 2, 3", SC'11, section 3) keyed by the lineage with the position as counter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox(key: ArrayLike, counter: ArrayLike, stream: ArrayLike = 0) -> NDArray[np.uint64]:
    """Philox4x32-10 of 64-bit `key` and counter words (counter, stream), broadcast together.

    Returns [..., 2] uint64: the four 32-bit words, two and two.
    """
    k, c, s = np.broadcast_arrays(
        np.asarray(key, np.uint64), np.asarray(counter, np.uint64), np.asarray(stream, np.uint64)
    )
    k0, k1 = k & _LOW, k >> _SHIFT
    x0, x1, x2, x3 = c & _LOW, c >> _SHIFT, s & _LOW, s >> _SHIFT
    for _ in range(10):
        p0, p1 = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]
        x0, x1, x2, x3 = (
            (p1 >> _SHIFT) ^ x1 ^ k0,
            p1 & _LOW,
            (p0 >> _SHIFT) ^ x3 ^ k1,
            p0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return np.stack([x0 | (x1 << _SHIFT), x2 | (x3 << _SHIFT)], axis=-1)


def root(seed: int) -> np.uint64:
    """The lineage of a request's prompt."""
    return np.uint64(philox(np.uint64(seed & 0xFFFFFFFFFFFFFFFF), 0, 0xF0)[..., 0])


def child(parent: ArrayLike, index: ArrayLike) -> NDArray[np.uint64]:
    """The lineage of fork `index` of each `parent`, broadcast together."""
    return np.asarray(philox(parent, index, 0xF1)[..., 0], np.uint64)


def descend(start: ArrayLike, path: NDArray[np.int64]) -> NDArray[np.uint64]:
    """[n] The lineage that n paths of forks [n, g] lead to from `start`: a beam row's is
    descend(root, the tokens it generated)."""
    lineage = np.broadcast_to(np.asarray(start, np.uint64), path.shape[:1]).copy()
    for column in path.T:
        lineage = child(lineage, column)
    return lineage


def uniform(lineage: ArrayLike, position: ArrayLike) -> NDArray[np.float64]:
    """One uniform in [0, 1) with 53 random bits for each (lineage, position)."""
    word = philox(lineage, position, 0xF2)[..., 0]
    return np.asarray((word >> np.uint64(11)) * np.float64(2.0**-53), np.float64)
