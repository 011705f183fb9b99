"""The best of each row's tokens after Gumbel noise, conditioned on what the best of all is to be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.calls import Steps, alone, in_parts
from forkdecode_kernels.cpu.selection import perturbed as cpu
from forkdecode_kernels.reference.perturbed import conditioned

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

    rows, tokens [N]; logprobs [N] float32: of the token alone. perturbed [N] float64: with noise. raw [N]:
    log-softmax of the logits before any change, of a device's selection alone.
    """

    rows: I64
    tokens: I64
    logprobs: NDArray[np.float32]
    perturbed: F64
    raw: NDArray[np.float32] | None = None


def perturbed_topk(logprobs: torch.Tensor, rows: PerturbedRows, *, threads: int = 1) -> Perturbed:
    """The k[r] tokens of each row with the highest perturbed log-probability.

    logprobs [m, V] float32, contiguous: normalised log-probabilities. Tokens of -inf are never listed; a row
    may have fewer than k. Noise: forkdecode_kernels.random.gumbels. With phi = base +
    logprob, g = phi + noise and Z the row's largest g, the perturbed log-probability under the condition
    that the largest is T = maximum is T - max(0, v) - log1p(exp(-|v|)), v = T - g + log1mexp(g - Z) (Kool
    et al. 2019, "Stochastic Beams and Where to Find Them", appendix B.3); that of the best is T itself. A
    row's answer depends on that row alone, bit for bit. Raises ValueError for shapes that don't fit.
    """
    _check(logprobs, rows)
    if logprobs.device.type != "cpu":
        return gpu_topk(logprobs, rows)
    return Perturbed(
        *cpu.perturbed_topk(
            logprobs.numpy(), rows.base, rows.maximum, rows.lineage, rows.position, rows.k, threads=threads
        )
    )


def gpu_topk(logprobs: torch.Tensor, rows: PerturbedRows) -> Perturbed:
    """`perturbed_topk` on a device. One copy to it and one back."""
    if not len(rows.k):
        none = np.empty(0, np.int64)
        return Perturbed(none, none, np.empty(0, np.float32), np.empty(0))
    return alone(perturbed_call(rows, logprobs.shape[1]), logprobs)


@in_parts
def perturbed_call(rows: PerturbedRows, vocab: int) -> Steps[Perturbed]:
    """`perturbed_topk` on a device, in parts: noise by a Triton kernel and torch's top-k.

    Which of equals is listed last is torch's choice; the noise has 52 bits, so that there are none.
    """
    from forkdecode_kernels.triton import perturbed as fast

    source, (lineage, position) = yield [rows.lineage.view(np.int64), rows.position]
    most = min(int(rows.k.max()), vocab)
    best = torch.topk(fast.noisy(source.values, lineage, position), most, dim=1)
    each = torch.arange(len(rows.k), device=best.indices.device)[:, None]
    own = source.values.gather(1, best.indices)
    raws = source.raw_logprobs(each, best.indices, own)
    tokens, noisy, chosen, raw = yield [best.indices, best.values, own, raws]
    listed = (np.arange(most) < rows.k[:, None]) & (noisy > -np.inf)
    row, _ = np.nonzero(listed)
    g = rows.base[row] + noisy[listed]
    perturbed = conditioned(g, rows.base[row] + noisy[row, 0], rows.maximum[row])
    token = tokens[listed]
    order = np.lexsort((token, -perturbed, row))
    return Perturbed(row, token[order], chosen[listed][order], perturbed[order], raw[listed][order])


def _check(logprobs: torch.Tensor, rows: PerturbedRows) -> None:
    if logprobs.ndim != 2 or logprobs.dtype != torch.float32 or not logprobs.is_contiguous():
        shape = tuple(logprobs.shape)
        raise ValueError(f"logprobs must be float32 [m, V], contiguous, not {logprobs.dtype} {shape}")
    for name in ("base", "maximum", "lineage", "position", "k"):
        if getattr(rows, name).shape != (len(logprobs),):
            raise ValueError(f"{name} must have one value for each of the {len(logprobs)} rows")
    if len(rows.k) and rows.k.min() < 1:
        raise ValueError("k must be 1 or more")
