"""Log-probabilities with Gumbel noise, of every token of every row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from forkdecode_kernels.reference.random import GUMBEL_STREAM
from forkdecode_kernels.triton.philox import philox
from forkdecode_kernels.triton.tiles import FUSED

TILE = 1024


@triton.jit
def noisy_kernel(
    logprobs_ptr,
    lineage_ptr,
    position_ptr,
    out_ptr,
    vocab,
    stride_row,
    STREAM: tl.constexpr,
    TILE: tl.constexpr,
):
    """Grid (rows, tiles): logprob + noise in float64, -inf for NaN."""
    i = tl.program_id(0)
    token = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = token < vocab
    x = tl.load(logprobs_ptr + i.to(tl.int64) * stride_row + token, mask=inside, other=float("-inf"))
    wide = (token - token).to(tl.uint64)
    key = wide + tl.load(lineage_ptr + i).to(tl.uint64, bitcast=True)
    position = wide + tl.load(position_ptr + i).to(tl.uint64)
    word = philox(key, position, (token.to(tl.uint64) << 32) | STREAM)
    # 52 bits and a half: neither 0 nor 1, whose noise would be infinite.
    uniform = ((word >> 12).to(tl.int64).to(tl.float64) + 0.5) * 2.220446049250313e-16
    noisy = x.to(tl.float64) - tl.log(-tl.log(uniform))
    noisy = tl.where(x >= float("-inf"), noisy, float("-inf"))
    tl.store(out_ptr + i.to(tl.int64) * vocab + token, noisy, mask=inside)


def noisy(logprobs: torch.Tensor, lineage: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """logprobs [m, V] float32; lineage [m] int64 (64-bit names, as bits), position [m] int64 -> [m, V]
    float64: see forkdecode_kernels.perturbed. NaN becomes -inf."""
    count, vocab = logprobs.shape
    out = torch.empty(count, vocab, dtype=torch.float64, device=logprobs.device)
    noisy_kernel[(count, triton.cdiv(vocab, TILE))](
        logprobs,
        lineage,
        position,
        out,
        vocab,
        logprobs.stride(0),
        STREAM=GUMBEL_STREAM,
        TILE=TILE,
        **FUSED,
    )
    return out
