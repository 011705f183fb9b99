"""Draws on the device: one program a row for its filters, one a child for its token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from forkdecode_kernels.triton.device import at_most
from forkdecode_kernels.triton.draw_kernels import distribution_kernel, draw_kernel, filter_rows_kernel
from forkdecode_kernels.triton.tiles import FUSED, power_of_two

CHUNK = 4096
FILTER_WARPS = 8
FILTER_REGISTERS = 128
"""Of a thread: a multiprocessor holds two programs. Left to itself the compiler spills sooner."""


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """One value a row, [m] each, on the device: float64, and top_k int64."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor


@dataclass(frozen=True, slots=True)
class DeviceDraws:
    """tokens [N] int64 (-1 where the row failed), logprobs [N] float32, logsumexp [m] float64,
    status [m] int32, distribution [m, V] float32 or None; all on the device."""

    tokens: torch.Tensor
    logprobs: torch.Tensor
    logsumexp: torch.Tensor
    status: torch.Tensor
    distribution: torch.Tensor | None


def filtered_draw(
    logits: torch.Tensor,
    rows: torch.Tensor,
    source: torch.Tensor,
    settings: DrawSettings,
    uniform: torch.Tensor,
    *,
    distribution: bool = False,
    chunk: int = CHUNK,
) -> DeviceDraws:
    """See forkdecode_kernels.draw. All is on the device, so that draws can follow philox.uniforms without
    a round trip. rows [m] int64; source [N] int64: which of `rows` each child continues; uniform [N] float64.
    """
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    device, m, children, vocab = logits.device, len(rows), len(source), logits.shape[1]
    chunks = triton.cdiv(vocab, chunk)

    def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    best, scale = empty(m, dtype=torch.float32), empty(m, dtype=torch.float32)
    key, ties = empty(m, dtype=torch.int32), empty(m, dtype=torch.int32)
    log_norm = empty(m, dtype=torch.float64)
    mass, ties_before = empty(m, chunks, dtype=torch.float64), empty(m, chunks, dtype=torch.int32)
    logsumexp = torch.full((m,), torch.nan, dtype=torch.float64, device=device)
    status = empty(m, dtype=torch.int32)
    tokens = torch.full((children,), -1, dtype=torch.int64, device=device)
    logprobs = torch.zeros(children, dtype=torch.float32, device=device)
    shape = (vocab, logits.stride(0), chunks)
    filter_rows_kernel[(m,)](
        logits,
        rows,
        settings.temperature,
        settings.top_k,
        settings.top_p,
        settings.min_p,
        best,
        scale,
        key,
        ties,
        log_norm,
        logsumexp,
        status,
        mass,
        ties_before,
        *shape,
        CHUNK=chunk,
        num_warps=FILTER_WARPS,
        **at_most(FILTER_REGISTERS, device),
        **FUSED,
    )
    if children:
        draw_kernel[(children,)](
            logits,
            rows,
            source,
            uniform,
            settings.min_p,
            settings.temperature,
            best,
            scale,
            key,
            ties,
            log_norm,
            status,
            mass,
            ties_before,
            tokens,
            logprobs,
            *shape,
            CHUNK=chunk,
            CHUNKS=power_of_two(chunks),
            num_warps=8,
            **FUSED,
        )
    dense = None
    if distribution:
        dense = torch.full((m, vocab), -torch.inf, dtype=torch.float32, device=device)
        distribution_kernel[(m, chunks)](
            logits,
            rows,
            settings.min_p,
            settings.temperature,
            best,
            scale,
            key,
            ties,
            log_norm,
            status,
            ties_before,
            dense,
            *shape,
            CHUNK=chunk,
            num_warps=8,
            **FUSED,
        )
    return DeviceDraws(tokens, logprobs, torch.where(status == 2, -torch.inf, logsumexp), status, dense)
