"""Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011, "Parallel Random Numbers: As Easy
as 1, 2, 3", section 3), keyed by a lineage, with a position and a stream as counter."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from forkdecode_kernels.reference.random import GUMBEL_STREAM, UNIFORM_STREAM
from forkdecode_kernels.triton.tiles import FUSED

BLOCK = 128


@triton.jit
def philox(key, counter, stream):
    """uint64 key, counter, stream -> the first 64 of 128 random bits."""
    k0 = key.to(tl.uint32)
    k1 = (key >> 32).to(tl.uint32)
    c0 = counter.to(tl.uint32)
    c1 = (counter >> 32).to(tl.uint32)
    c2 = stream.to(tl.uint32)
    c3 = (stream >> 32).to(tl.uint32)
    zero = c0 ^ c0
    mult_a = zero + 0xD2511F53
    mult_b = zero + 0xCD9E8D57
    for _ in tl.static_range(10):
        even = c0
        odd = c2
        c0 = tl.umulhi(mult_b, odd) ^ c1 ^ k0
        c2 = tl.umulhi(mult_a, even) ^ c3 ^ k1
        c1 = mult_b * odd
        c3 = mult_a * even
        k0 = k0 + (zero + 0x9E3779B9)
        k1 = k1 + (zero + 0xBB67AE85)
    return c0.to(tl.uint64) | (c1.to(tl.uint64) << 32)


@triton.jit
def uniforms_kernel(lineage_ptr, position_ptr, out_ptr, count, STREAM: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (count / BLOCK): uniforms in [0, 1) with 53 random bits."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    key = tl.load(lineage_ptr + at, mask=mask, other=0).to(tl.uint64, bitcast=True)
    position = tl.load(position_ptr + at, mask=mask, other=0).to(tl.uint64)
    word = philox(key, position, position * 0 + STREAM)
    tl.store(out_ptr + at, (word >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16, mask=mask)


@triton.jit
def gumbels_kernel(
    lineage_ptr,
    position_ptr,
    tokens_ptr,
    out_ptr,
    count,
    width,
    STREAM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (count / BLOCK) over the flat tokens, `width` of each lineage."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    row = at // width
    key = tl.load(lineage_ptr + row, mask=mask, other=0).to(tl.uint64, bitcast=True)
    position = tl.load(position_ptr + row, mask=mask, other=0).to(tl.uint64)
    token = tl.load(tokens_ptr + at, mask=mask, other=0).to(tl.uint64)
    word = philox(key, position, (token << 32) | STREAM)
    # 52 bits and a half: neither 0 nor 1, whose noise would be infinite.
    uniform = ((word >> 12).to(tl.int64).to(tl.float64) + 0.5) * 2.220446049250313e-16
    tl.store(out_ptr + at, -tl.log(-tl.log(uniform)), mask=mask)


def uniforms(lineage: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """See forkdecode_kernels.random."""
    out = torch.empty(lineage.shape, dtype=torch.float64, device=lineage.device)
    count = len(lineage)
    uniforms_kernel[(triton.cdiv(count, BLOCK),)](
        lineage, position, out, count, STREAM=UNIFORM_STREAM, BLOCK=BLOCK, **FUSED
    )
    return out


def gumbels(lineage: torch.Tensor, position: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """See forkdecode_kernels.random."""
    tokens = tokens.contiguous()
    out = torch.empty(tokens.shape, dtype=torch.float64, device=lineage.device)
    count = tokens.numel()
    gumbels_kernel[(triton.cdiv(count, BLOCK),)](
        lineage, position, tokens, out, count, tokens.shape[1], STREAM=GUMBEL_STREAM, BLOCK=BLOCK, **FUSED
    )
    return out
