"""One token for each child of a row: temperature, filters and inverse CDF in one operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.calls import Call, Keeping, Source, Steps, alone, in_parts
from forkdecode_kernels.cpu.selection import draw as cpu
from forkdecode_kernels.cpu.selection.draw_tops import Tops, make_tops
from forkdecode_kernels.reference import draw as reference
from forkdecode_kernels.reference import logsumexp as reference_sums

SETTINGS = ("temperature", "top_k", "top_p", "min_p", "typical_p")
CHUNK_ELEMENTS = 1 << 23
"""Logits that are sorted together, away from the CPU: some 100 bytes each. As many numbers of a row's
cumulative distribution are searched together, which is there once for each of its draws."""

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
    distribution drawn from (at temperature 0: of all tokens), -inf where filtered out; a device's is -inf
    in rows that failed too.
    """

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    raw: NDArray[np.float32]
    logsumexp: NDArray[np.float64]
    status: NDArray[np.uint8]
    distribution: torch.Tensor | None = None


class Distribution(NamedTuple):
    """What draws leave on the device: the distribution [m, V] if asked for, logsumexp [m] of the rows, the
    tokens [N]."""

    logprobs: torch.Tensor | None
    logsumexp: torch.Tensor
    tokens: torch.Tensor


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
    if logits.device.type == "cuda":
        return gpu_draws(logits, draws, uniform, distribution=distribution)
    if logits.device.type != "cpu":
        return reference_draws(logits, draws, uniform, distribution=distribution)
    return _cpu_draws(logits, draws, uniform, distribution, threads, None)


def draws_with_tops(
    logits: torch.Tensor, draws: DrawRows, uniform: NDArray[np.float64], k: NDArray[np.int64], *, threads: int
) -> tuple[Draws, Tops]:
    """`filtered_draw` on the CPU, and the k[i] likeliest tokens of each row i, none for 0: as it came, and of
    the distribution drawn from. What row_topk lists of both, without the distribution's other tokens."""
    _check(logits, draws, uniform)
    tops = make_tops(k)
    return _cpu_draws(logits, draws, uniform, False, threads, tops), tops


def _cpu_draws(
    logits: torch.Tensor,
    draws: DrawRows,
    uniform: NDArray[np.float64],
    distribution: bool,
    threads: int,
    tops: Tops | None,
) -> Draws:
    settings = cpu.Settings(draws.temperature, draws.top_k, draws.top_p, draws.min_p, draws.typical_p)
    out = cpu.filtered_draw(
        logits,
        draws.rows,
        draws.child_offsets,
        settings,
        uniform,
        distribution=distribution,
        threads=threads,
        tops=tops,
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
    """`filtered_draw` on a device. One copy to it and one back."""
    return alone(draws_call(draws, uniform, distribution=distribution), logits)


def draws_call(draws: DrawRows, uniform: NDArray[np.float64], *, distribution: bool = False) -> Call[Draws]:
    """`filtered_draw` on a device, in parts: by the Triton kernels, which have no typical sampling; with it
    by sorts. Rows that are not to hang on each other's way are to be asked for apart."""
    by_kernels = bool((draws.typical_p >= 1).all())
    return (kernel_call if by_kernels else sorted_call)(draws, uniform, distribution=distribution)


def is_sorted(typical_p: float) -> bool:
    """Whether draws with it on a device are by sorts."""
    return typical_p < 1


@in_parts
def kernel_call(draws: DrawRows, uniform: NDArray[np.float64], *, distribution: bool = False) -> Steps[Draws]:
    """By the Triton kernels. Keeps a Distribution."""
    from forkdecode_kernels.triton import filtered_draw as fast

    own = _source(draws)
    settings = [draws.temperature, draws.top_k, draws.top_p, draws.min_p]
    source, sent = yield [draws.rows, own, uniform, *settings]
    rows, children, uniforms = sent[:3]
    drawn = fast.filtered_draw(
        source.values, rows, children, fast.DrawSettings(*sent[3:]), uniforms, distribution=distribution
    )
    raw = _raw_there(source, rows, children, drawn.tokens, drawn.logsumexp)
    kept = Distribution(drawn.distribution, drawn.logsumexp, drawn.tokens)
    told = yield Keeping([drawn.tokens, drawn.logprobs, raw, drawn.logsumexp, drawn.status], kept)
    tokens, logprobs, raws, lse, status = told
    return Draws(tokens, logprobs, raws, lse, status.astype(np.uint8), drawn.distribution)


@in_parts
def sorted_call(draws: DrawRows, uniform: NDArray[np.float64], *, distribution: bool = False) -> Steps[Draws]:
    """By sorts in float64, a bounded number of rows at a time. Keeps a Distribution."""
    own, settings = _source(draws), [getattr(draws, name) for name in SETTINGS]
    source, sent = yield [draws.rows, own, uniform, *settings]
    rows, children, uniforms = sent[:3]
    step = max(1, CHUNK_ELEMENTS // source.values.shape[1])
    parts = []
    for first in range(0, len(draws.rows), step):
        last = min(first + step, len(draws.rows))
        below, above = (int(draws.child_offsets[i]) for i in (first, last))
        chosen = {name: t[first:last] for name, t in zip(SETTINGS, sent[3:], strict=True)}
        at = children[below:above] - first, uniforms[below:above]
        parts.append(_sorted(source.values[rows[first:last]], chosen, *at, distribution=distribution))
    tokens, logprobs, lse, status = (torch.cat([p[i] for p in parts]) for i in range(4))
    dense = torch.cat([p[4] for p in parts]) if distribution else None
    raw = _raw_there(source, rows, children, tokens, lse)
    told = yield Keeping([tokens, logprobs, raw, lse, status], Distribution(dense, lse, tokens))
    drawn: tuple[NDArray[Any], ...] = tuple(told)
    return Draws(drawn[0], drawn[1], drawn[2], drawn[3], drawn[4], dense)


def _sorted(
    logits: torch.Tensor,
    settings: dict[str, torch.Tensor],
    children: torch.Tensor,
    uniforms: torch.Tensor,
    *,
    distribution: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """tokens, logprobs [n] of the children; logsumexp, status [m] of the rows; the distribution, or [0]."""
    picked = logits.float()
    lse, valid = reference_sums.row_logsumexp(picked)
    status = torch.where(valid, torch.where(lse.isneginf(), NO_TOKEN, OK), NOT_FINITE).to(torch.uint8)
    fine = status == OK
    logprobs, keep = reference.filtered_logprobs(torch.where(fine[:, None], picked, 0.0), **settings)
    some = max(1, CHUNK_ELEMENTS // logits.shape[1])
    pieces = [slice(first, first + some) for first in range(0, len(children), some)] or [slice(0)]
    tokens = torch.cat([reference.draw(logprobs, keep, children[p], uniforms[p]) for p in pieces])
    chosen = logprobs[children, tokens].float()
    tokens = torch.where(fine[children], tokens, -1)
    dense = torch.where(fine[:, None], logprobs.float(), -torch.inf) if distribution else picked[:0]
    return tokens, chosen, torch.where(valid, lse, torch.nan), status, dense


def _raw_there(
    source: Source, rows: torch.Tensor, children: torch.Tensor, tokens: torch.Tensor, lse: torch.Tensor
) -> torch.Tensor:
    """[N] Log-softmax before any change, of the drawn tokens; NaN where the row failed."""
    safe = tokens.clamp(min=0)
    own = (source.values[rows[children], safe].double() - lse[children]).float()
    # Values that were changed are rows of their own, in order.
    return torch.where(tokens < 0, torch.nan, source.raw_logprobs(children, safe, own))


def reference_draws(
    logits: torch.Tensor, draws: DrawRows, uniform: NDArray[np.float64], *, distribution: bool = False
) -> Draws:
    """`filtered_draw` by full sorts in float64, on any device."""
    return alone(sorted_call(draws, uniform, distribution=distribution), logits)


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
    for name in SETTINGS:
        if getattr(draws, name).shape != (m,):
            raise ValueError(f"{name} must have one value for each of the {m} rows")
    if m and (draws.rows.min() < 0 or draws.rows.max() >= logits.shape[0]):
        raise ValueError(f"rows must be in 0 .. {logits.shape[0] - 1}")
    offsets = draws.child_offsets
    if offsets.shape != (m + 1,) or offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise ValueError("child_offsets must be [m + 1], from 0 and never falling")
    if uniform.shape != (int(offsets[-1]),) or uniform.dtype != np.float64:
        raise ValueError(f"uniform must be float64 [{int(offsets[-1])}], not {uniform.dtype} {uniform.shape}")
