"""Counter-based random numbers in numpy: Philox4x32-10 (Salmon et al. 2011, section 3)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

UNIFORM_STREAM = 0xF2
"""The stream that draws use."""
GUMBEL_STREAM = 0xF3
"""Low half of the stream of Gumbel noise; the token id is the high half."""

_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(key: U64, counter: U64, stream: U64) -> U64:
    """The first 64 of 128 random bits for 64-bit keys and counter words, broadcast together."""
    k0, k1 = key & _LOW, key >> _SHIFT
    x0, x1, x2, x3 = counter & _LOW, counter >> _SHIFT, stream & _LOW, stream >> _SHIFT
    for _ in range(10):
        p0, p1 = x0 * np.uint64(0xD2511F53), x2 * np.uint64(0xCD9E8D57)
        x0, x1, x2, x3 = (p1 >> _SHIFT) ^ x1 ^ k0, p1 & _LOW, (p0 >> _SHIFT) ^ x3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & _LOW, (k1 + np.uint64(0xBB67AE85)) & _LOW
    return np.asarray(x0 | (x1 << _SHIFT), np.uint64)


def uniforms(lineage: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """See forkdecode_kernels.random."""
    word = philox(_words(lineage), _words(position), np.array(UNIFORM_STREAM, np.uint64))
    return torch.from_numpy((word >> np.uint64(11)) * 2.0**-53)


def gumbels(lineage: torch.Tensor, position: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """See forkdecode_kernels.random."""
    stream = _words(tokens) << _SHIFT | np.uint64(GUMBEL_STREAM)
    word = philox(_words(lineage)[:, None], _words(position)[:, None], stream)
    uniform = ((word >> np.uint64(12)) + 0.5) * 2.0**-52
    return torch.from_numpy(-np.log(-np.log(uniform)))


def _words(values: torch.Tensor) -> U64:
    return values.numpy().astype(np.int64).view(np.uint64)
