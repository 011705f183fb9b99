"""The best of each row's tokens after Gumbel noise, conditioned on what the best of all is to be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection import perturbed as cpu

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PerturbedRows:
    """What is asked of m rows, one value each.

    base [m]: the log-probability of the prefix that the row's tokens continue. maximum [m]: what the row's
    best perturbed log-probability is to be; inf: whatever it comes to. lineage, position [m]: what the
    noise hangs on. k [m]: how many are wanted, 1 or more.
    """

    base: F64
    maximum: F64
    lineage: NDArray[np.uint64]
    position: I64
    k: I64


@dataclass(frozen=True, slots=True)
class Perturbed:
    """N continuations, row after row, each row's best first; of equals the lower token.

    rows, tokens [N]; logprobs [N] float32: of the token alone. perturbed [N] float64: with noise.
    """

    rows: I64
    tokens: I64
    logprobs: NDArray[np.float32]
    perturbed: F64


def perturbed_topk(logprobs: NDArray[np.float32], rows: PerturbedRows, *, threads: int = 1) -> Perturbed:
    """The k[r] tokens of each row with the highest perturbed log-probability.

    logprobs [m, V] float32 in C order: normalised log-probabilities. Tokens below -87, one in 10 ** 37, are
    never listed; a row may have fewer than k. Noise: forkdecode_kernels.random.gumbels. With phi = base +
    logprob, g = phi + noise and Z the row's largest g, the perturbed log-probability under the condition
    that the largest is T = maximum is T - max(0, v) - log1p(exp(-|v|)), v = T - g + log1mexp(g - Z) (Kool
    et al. 2019, "Stochastic Beams and Where to Find Them", appendix B.3); that of the best is T itself. A
    row's answer depends on that row alone, bit for bit. Raises ValueError for shapes that don't fit.
    """
    _check(logprobs, rows)
    return Perturbed(
        *cpu.perturbed_topk(
            logprobs, rows.base, rows.maximum, rows.lineage, rows.position, rows.k, threads=threads
        )
    )


def _check(logprobs: NDArray[np.float32], rows: PerturbedRows) -> None:
    if logprobs.ndim != 2 or logprobs.dtype != np.float32 or not logprobs.flags.c_contiguous:
        raise ValueError(f"logprobs must be float32 [m, V] in C order, not {logprobs.dtype} {logprobs.shape}")
    for name in ("base", "maximum", "lineage", "position", "k"):
        if getattr(rows, name).shape != (len(logprobs),):
            raise ValueError(f"{name} must have one value for each of the {len(logprobs)} rows")
    if len(rows.k) and rows.k.min() < 1:
        raise ValueError("k must be 1 or more")
