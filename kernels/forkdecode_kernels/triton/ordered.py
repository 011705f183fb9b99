"""Floats as integers in the same order, for searches by bits and for sorting by score and index at once."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def ordered(x):
    """float32 -> int32 that compare alike; -0 and 0 are one value. Not for NaN."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


@triton.jit
def unordered(key):
    """The float32 that `ordered` made the key from."""
    return tl.where(key >= 0, key, key ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)
