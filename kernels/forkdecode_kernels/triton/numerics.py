"""Small device functions that several kernels share."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

LOG2_E = 1.4426950408889634


@triton.jit
def rounded_to_bfloat16(x):
    """float32 values rounded to the nearest bfloat16 (ties to even), still in float32."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    return tl.where(x == x, rounded.to(tl.float32, bitcast=True), x)


@triton.jit
def narrowed(x, dtype: tl.constexpr, EMULATE: tl.constexpr):
    """float32 values rounded to `dtype`; with EMULATE they stay float32, and bfloat16 is rounded by hand.

    The interpreter truncates on the way to bfloat16 and computes wrongly on bfloat16 operands.
    """
    if EMULATE:
        if dtype == tl.bfloat16:
            x = rounded_to_bfloat16(x)
        else:
            x = x.to(dtype).to(tl.float32)
    else:
        x = x.to(dtype)
    return x


@triton.jit
def tanh(x):
    """float32 tanh to about one unit in the last place: Cephes' tanhf (polynomial below 0.625)."""
    z = x * x
    p = -5.70498872745e-3 * z + 2.06390887954e-2
    p = p * z - 5.37397155531e-2
    p = p * z + 1.33314422036e-1
    p = p * z - 3.33332819422e-1
    e = tl.exp(-2.0 * tl.abs(x))
    outer = (1.0 - e) / (1.0 + e)
    return tl.where(tl.abs(x) < 0.625, p * z * x + x, tl.where(x < 0, -outer, outer))


INTERPRETED = isinstance(tanh, InterpretedFunction)
"""Whether kernels run in Triton's interpreter: then bfloat16 operands are computed on in float32."""
