"""Random numbers that depend on a lineage and a position alone, made where they are used."""

from __future__ import annotations

import torch

from forkdecode_kernels.reference import random as reference


def uniforms(lineage: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """lineage [N] int64 (64-bit names, as bits), position [N] int64 -> float64 [N] in [0, 1).

    Equal to forkdecode.lineage.uniform, bit for bit. Raises ValueError on unfit shapes or dtypes.
    """
    _check(lineage, position)
    if lineage.device.type == "cpu":
        return reference.uniforms(lineage, position)
    from forkdecode_kernels.triton import philox as fast

    return fast.uniforms(lineage, position)


def gumbels(lineage: torch.Tensor, position: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise of tokens [N, k] int64 under each lineage -> float64 [N, k].

    Adding it to log-probabilities and taking the best m samples m tokens without replacement (Kool et
    al. 2019, "Stochastic Beams and Where to Find Them", section 2.3). A token's noise does not depend
    on which others are asked for.
    """
    _check(lineage, position)
    if tokens.ndim != 2 or len(tokens) != len(lineage) or tokens.dtype != torch.int64:
        raise ValueError(f"tokens is {tokens.dtype} {tuple(tokens.shape)}; must be int64 [{len(lineage)}, k]")
    if lineage.device.type == "cpu":
        return reference.gumbels(lineage, position, tokens)
    from forkdecode_kernels.triton import philox as fast

    return fast.gumbels(lineage, position, tokens)


def _check(lineage: torch.Tensor, position: torch.Tensor) -> None:
    for name, value in (("lineage", lineage), ("position", position)):
        if value.ndim != 1 or value.dtype != torch.int64 or value.shape != lineage.shape:
            raise ValueError(f"{name} is {value.dtype} {tuple(value.shape)}; must be int64 [N]")
