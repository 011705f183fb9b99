"""One token for each child of a row: temperature, filters and inverse CDF in one operation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection import draw as cpu
from forkdecode_kernels.reference import draw as reference
from forkdecode_kernels.reference import logsumexp as reference_sums
from forkdecode_kernels.transfer import to_device, to_host

OK, NOT_FINITE, NO_TOKEN = 0, 1, 2
"""Row status: drawn; the logits hold NaN or +inf; every logit is -inf."""


@dataclass(frozen=True, slots=True)
class DrawRows:
    """m rows to draw from, with one value of each setting a row.

    rows [m]: index into the logits. child_offsets [m + 1]: the draws of row i are children
    child_offsets[i] .. child_offsets[i + 1]. temperature 0 is argmax (ties: lower id); top_k 0,
    top_p 1, min_p 0 and typical_p 1 are off.
    """

    rows: NDArray[np.int64]
    child_offsets: NDArray[np.int64]
    temperature: NDArray[np.float64]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float64]
    typical_p: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Draws:
    """tokens [N] (-1 where the row failed), logprobs [N] float32: log-probability in the final distribution;
    raw [N] float32: log_softmax of the logits as they came, NaN where the row failed.

    logsumexp [m] float64 of the rows' logits as they came; status [m]: OK, NOT_FINITE or NO_TOKEN.
    distribution [m, V] float32, when asked for, on the logits' device: log-probabilities of the
    distribution drawn from, -inf where filtered out (at temperature 0: of all tokens).
    """

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    raw: NDArray[np.float32]
    logsumexp: NDArray[np.float64]
    status: NDArray[np.uint8]
    distribution: torch.Tensor | None = None


def filtered_draw(
    logits: torch.Tensor,
    draws: DrawRows,
    uniform: NDArray[np.float64],
    *,
    distribution: bool = False,
    threads: int = 1,
) -> Draws:
    """Draw uniform.size tokens. logits [M, V], any float type; uniform [N] float64 in [0, 1).

    A draw is the first kept token, in token-id order, whose cumulative probability exceeds u. A
    row's answer depends on that row alone, bit for bit, whatever `threads` is.
    """
    _check(logits, draws, uniform)
    if logits.device.type == "cuda" and (draws.typical_p >= 1).all():
        return gpu_draws(logits, draws, uniform, distribution=distribution)
    if logits.device.type != "cpu":
        return reference_draws(logits, draws, uniform, distribution=distribution)
    settings = cpu.Settings(draws.temperature, draws.top_k, draws.top_p, draws.min_p, draws.typical_p)
    out = cpu.filtered_draw(
        logits,
        draws.rows,
        draws.child_offsets,
        settings,
        uniform,
        distribution=distribution,
        threads=threads,
    )
    dense = torch.from_numpy(out.distribution) if distribution else None
    raw = raw_logprobs_of(logits, draws, out.logsumexp, out.tokens)
    return Draws(out.tokens, out.logprobs, raw, out.logsumexp, out.status, dense)


def raw_logprobs_of(
    logits: torch.Tensor, draws: DrawRows, logsumexp: NDArray[np.float64], tokens: NDArray[np.int64]
) -> NDArray[np.float32]:
    """[N] log_softmax of the logits as they came, of the drawn tokens; on the CPU."""
    source = _source(draws)
    at = torch.from_numpy(draws.rows[source]), torch.from_numpy(np.maximum(tokens, 0))
    return _raw(logits[at].double().numpy(), logsumexp[source], tokens)


def gpu_draws(
    logits: torch.Tensor, draws: DrawRows, uniform: NDArray[np.float64], *, distribution: bool = False
) -> Draws:
    """`filtered_draw` by the Triton kernels; typical sampling is not among their filters. One copy to the
    device and one back."""
    from forkdecode_kernels.triton import filtered_draw as fast

    source = _source(draws)
    settings = [draws.temperature, draws.top_k, draws.top_p, draws.min_p]
    sent = to_device([draws.rows, source, uniform, *settings], logits.device)
    rows, children, uniforms = sent[:3]
    drawn = fast.filtered_draw(
        logits, rows, children, fast.DrawSettings(*sent[3:]), uniforms, distribution=distribution
    )
    chosen = logits[rows[children], drawn.tokens.clamp(min=0)].double()
    told = (drawn.tokens, drawn.logprobs, chosen, drawn.logsumexp, drawn.status)
    tokens, logprobs, values, lse, status = to_host(told)
    return Draws(
        tokens,
        logprobs,
        _raw(values, lse[source], tokens),
        lse,
        status.astype(np.uint8),
        drawn.distribution,
    )


def reference_draws(
    logits: torch.Tensor, draws: DrawRows, uniform: NDArray[np.float64], *, distribution: bool = False
) -> Draws:
    """`filtered_draw` by full sorts in float64, on any device."""
    picked = logits[torch.from_numpy(draws.rows).to(logits.device)].float()
    lse, valid = reference_sums.row_logsumexp(picked)
    status = np.where(valid.cpu().numpy(), OK, NOT_FINITE).astype(np.uint8)
    status[(status == OK) & np.isneginf(lse.cpu().numpy())] = NO_TOKEN
    fine = torch.from_numpy(status == OK).to(logits.device)
    safe = torch.where(fine[:, None], picked, 0.0)
    settings = {
        name: torch.from_numpy(getattr(draws, name)).to(logits.device)
        for name in ("temperature", "top_k", "top_p", "min_p", "typical_p")
    }
    logprobs, keep = reference.filtered_logprobs(safe, **settings)
    source = torch.from_numpy(_source(draws)).to(logits.device)
    tokens = reference.draw(logprobs, keep, source, torch.from_numpy(uniform).to(logits.device))
    chosen = logprobs[source, tokens].float()
    values = picked[source, tokens].double()
    tokens = torch.where(fine[source], tokens, -1)
    told = [t.cpu().numpy() for t in (tokens, values, lse[source])]
    return Draws(
        told[0],
        chosen.cpu().numpy(),
        _raw(told[1], told[2], told[0]),
        lse.cpu().numpy(),
        status,
        logprobs.float() if distribution else None,
    )


def _source(draws: DrawRows) -> NDArray[np.int64]:
    """[N]: which of the rows each child continues."""
    return np.repeat(np.arange(len(draws.rows)), np.diff(draws.child_offsets))


def _raw(
    logits: NDArray[np.float64], logsumexp: NDArray[np.float64], tokens: NDArray[np.int64]
) -> NDArray[np.float32]:
    """[N], of the drawn tokens' logits."""
    with np.errstate(invalid="ignore"):
        return np.where(tokens < 0, np.nan, logits - logsumexp).astype(np.float32)


def _check(logits: torch.Tensor, draws: DrawRows, uniform: NDArray[np.float64]) -> None:
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits must be [M, V], not {tuple(logits.shape)}")
    m = len(draws.rows)
    for name in ("temperature", "top_k", "top_p", "min_p", "typical_p"):
        if getattr(draws, name).shape != (m,):
            raise ValueError(f"{name} must have one value for each of the {m} rows")
    if m and (draws.rows.min() < 0 or draws.rows.max() >= logits.shape[0]):
        raise ValueError(f"rows must be in 0 .. {logits.shape[0] - 1}")
    offsets = draws.child_offsets
    if offsets.shape != (m + 1,) or offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise ValueError("child_offsets must be [m + 1], from 0 and never falling")
    if uniform.shape != (int(offsets[-1]),) or uniform.dtype != np.float64:
        raise ValueError(f"uniform must be float64 [{int(offsets[-1])}], not {uniform.dtype} {uniform.shape}")
