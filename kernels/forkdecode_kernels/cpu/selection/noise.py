"""The random words behind Gumbel noise: Philox4x32-10 of a lineage, a position and a token, made where they
are used. Written for one token, so that a loop over tokens becomes one over vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.jit import inlined, kernel

GUMBEL_STREAM = np.uint32(0xF3)

_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)


@inlined
def halves(token: np.uint32, key: np.uint64, counter: np.uint64) -> tuple[np.uint32, np.uint32]:
    """The lower and the upper 32 bits of a token's random word."""
    x0, x1 = np.uint32(counter & _LOW), np.uint32(counter >> _SHIFT)
    x2, x3 = GUMBEL_STREAM, token
    k0, k1 = np.uint32(key & _LOW), np.uint32(key >> _SHIFT)
    # Not in a loop: left as one, it would keep loops over tokens from becoming loops over vectors.
    x0, x1, x2, x3, k0, k1 = _two_rounds(x0, x1, x2, x3, k0, k1)
    x0, x1, x2, x3, k0, k1 = _two_rounds(x0, x1, x2, x3, k0, k1)
    x0, x1, x2, x3, k0, k1 = _two_rounds(x0, x1, x2, x3, k0, k1)
    x0, x1, x2, x3, k0, k1 = _two_rounds(x0, x1, x2, x3, k0, k1)
    x0, x1, _, _, _, _ = _two_rounds(x0, x1, x2, x3, k0, k1)
    return x0, x1


@kernel
def _two_rounds(
    x0: np.uint32, x1: np.uint32, x2: np.uint32, x3: np.uint32, k0: np.uint32, k1: np.uint32
) -> tuple[np.uint32, np.uint32, np.uint32, np.uint32, np.uint32, np.uint32]:
    x0, x1, x2, x3 = _round(x0, x1, x2, x3, k0, k1)
    k0, k1 = np.uint32(k0 + _W0), np.uint32(k1 + _W1)
    x0, x1, x2, x3 = _round(x0, x1, x2, x3, k0, k1)
    return x0, x1, x2, x3, np.uint32(k0 + _W0), np.uint32(k1 + _W1)


@kernel
def _round(
    x0: np.uint32, x1: np.uint32, x2: np.uint32, x3: np.uint32, k0: np.uint32, k1: np.uint32
) -> tuple[np.uint32, np.uint32, np.uint32, np.uint32]:
    p0, p1 = np.uint64(x0) * _M0, np.uint64(x2) * _M1
    return np.uint32(p1 >> _SHIFT) ^ x1 ^ k0, np.uint32(p1), np.uint32(p0 >> _SHIFT) ^ x3 ^ k1, np.uint32(p0)


@kernel
def uniform_of(token: np.uint32, key: np.uint64, counter: np.uint64) -> np.float64:
    """Above 0 and below 1, of 52 bits."""
    low, high = halves(token, key, counter)
    word = np.uint64(low) | (np.uint64(high) << _SHIFT)
    return (np.float64(word >> np.uint64(12)) + 0.5) * 2.0**-52


@kernel
def upper_halves(first: np.uint32, key: np.uint64, counter: np.uint64, out: NDArray[np.uint32]) -> None:
    """The upper 32 bits of tokens first, first + 1 ... -> out."""
    for i in range(out.shape[0]):
        _, out[i] = halves(np.uint32(first + np.uint32(i)), key, counter)


@kernel
def upper_halves_of(ids: Any, key: np.uint64, counter: np.uint64, out: NDArray[np.uint32]) -> None:
    """The upper 32 bits of tokens ids -> out."""
    for i in range(out.shape[0]):
        _, out[i] = halves(np.uint32(ids[i]), key, counter)
